-- Complete a batch: those still processing under their fence, not to be cancelled, with no keys of
-- their own, in plain queues, or in any that the caller has locked. What must hold stands in a case,
-- out of the planner's sight: it would take it for rare, and go through the table to find it.
with entered as materialized (select * from {enter}()),
done as materialized (
    select done.*, {now} as now_us
    from unnest(
        string_to_array(%(ids)s, e'\x1e'), string_to_array(%(fences)s, ' ')::bigint[],
        string_to_array(%(results)s, e'\x1e')
    ) as done (id, fence, result)
),
completed as (
    update {jobs} as job
    set
        status = 3, lane = null, settled = job.fence * 16 + 1, suspect = false, alone = false,
        line = null, order_line = null, attempts = attempts + 1,
        result = nullif(done.result, ''), error = null,
        finished_us = done.now_us, updated_us = done.now_us, hold_us = null,
        expires_us = done.now_us + %(expires_us)s::bigint,
        record_until_us = done.now_us + %(keep_us)s::bigint,
        result_until_us = done.now_us + %(result_keep_us)s::bigint
    from done
    where
        job.id = any(string_to_array(%(ids)s, e'\x1e')) and job.id = done.id
        and case
            when
                job.fence = done.fence and job.status = 2 and not job.cancel_requested
                and not job.keyed and (%(any_queue)s or job.queue <> all((select queues from entered)::text[]))
                then true
            else false
        end
    returning job.id, job.awaited
)
select
    (select count(*) from completed), array(select id from completed where awaited),
    case
        when (select count(*) from completed) < %(count)s then array(
            select distinct job.queue from {jobs} as job
            where job.id = any(string_to_array(%(ids)s, e'\x1e'))
        )
    end,
    entered.queues, entered.tasks, entered.tasked
from entered
