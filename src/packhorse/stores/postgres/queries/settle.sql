-- name: settle_completed
-- Complete a batch: those still processing under their fence, not to be cancelled, with no keys of
-- their own, in queues where an end releases nothing and in those that the caller has locked (null: all). What
-- must hold stands in a case, out of the planner's sight: it would take it for rare, and go through the table to
-- find it.
with entered as materialized (select * from {enter}()),
done as materialized (
    select done.*, {now} as now_us
    from unnest(
        string_to_array(:ids, e'\x1e'), string_to_array(:fences, ' ')::bigint[],
        string_to_array(:results, e'\x1e')
    ) as done (id, fence, result)
),
completed as (
    update {jobs} as job
    set
        status = {status.completed}, lane = null,
        settled = job.fence * {mark.kinds} + {mark.completed}, suspect = false, alone = false,
        line = null, order_line = null, attempts = attempts + 1,
        result = nullif(done.result, ''), error = null,
        finished_us = done.now_us, updated_us = done.now_us, hold_us = null,
        expires_us = done.now_us + :expires_us::bigint,
        record_until_us = done.now_us + :keep_us::bigint,
        result_until_us = done.now_us + :result_keep_us::bigint
    from done
    where
        job.id = any(string_to_array(:ids, e'\x1e')) and job.id = done.id
        and case
            when
                job.fence = done.fence and job.status = {status.processing} and not job.cancel_requested
                and not job.keyed
                and (
                    job.queue <> all((select queues from entered)::text[])
                    or 'quiet ' || job.queue = any((select queues from entered)::text[])
                    or coalesce(job.queue = any(:locked::text[]), true)
                )
                then true
            else false
        end
    returning job.id, job.awaited, job.queue
)
select
    (select count(*) from completed), array(select id from completed where awaited),
    case
        when (select count(*) from completed) < :count then array(
            select distinct job.queue from {jobs} as job
            where job.id = any(string_to_array(:ids, e'\x1e'))
        )
        else array(select distinct queue from completed)
    end,
    entered.queues, entered.tasks, entered.tasked
from entered

-- name: settle_lock
-- Lock jobs that are about to be settled.
select from {jobs} where id = any(?::text[]) order by id for update

-- name: aftermath
-- Jobs whose attempt or waiting is over: has it ended, and does it leave its line?
select
    job.seq, job.finished_us is not null, job.finished_us is not null and job.order_line is null,
    queue.settings, job.queue, job.task, job.tenant, job.ordering_key, job.concurrency_key,
    job.rate_key
from unnest(:values::<type>[]) with ordinality as asked (value, number)
join {jobs} as job on job.<column> = asked.value
left join {queues} as queue on queue.name = job.queue
where job.<column> = any(:values::<type>[])
order by asked.number

-- name: aftermath_needed
-- Whether anything waits for attempts to end: jobs behind the heads of their lines; jobs behind other gates,
-- or other claims of limited tasks; stashed jobs; workers or producers; and callers, who are not counted. No
-- name of a gate lies between those of lines and the others.
select
    exists (select 1 from {jobs} where lane = {lane.blocked}),
    exists (select 1 from {jobs} where blocked_by >= 'order ')
    or exists (select 1 from {jobs} where blocked_by < 'order')
    or exists (select 1 from {special} where cardinality(tasks) > 0),
    exists (select 1 from {stash}),
    exists (select 1 from {queues} where limited),
    true

-- name: await_finish
-- A caller waits for this job's end, unless it has ended already; the queue of a job that is ready.
with marked as (
    update {jobs} set awaited = true where id = ? and finished_us is null and not awaited
    returning queue, lane
)
select queue from marked where lane = {lane.ready}

-- name: awaited_ended
-- Those of these jobs that a caller waits for and that have finished.
select id from {jobs}
where <column> = any(:values::<type>[]) and awaited and finished_us is not null

-- name: attach_rows
-- Keep values with jobs.
insert into {attachments} (seq, name, number, value)
select * from unnest(?::bigint[], ?::text[], ?::bigint[], ?::bytea[])
on conflict (seq, name, number) do update set value = excluded.value

-- name: attached_mark
-- Those of some jobs that have something attached, and do not say so yet, say so when they are claimed.
-- Not `exists`, for which the planner would go through the table.
update {jobs} as job set options = {marked options}
where
    seq = any(?::bigint[]) and position('"attached":' in coalesce(options, '')) = 0
    and (select true from {attachments} as kept where kept.seq = job.seq and kept.name <> '' limit 1)

-- name: attach
-- Attach values to those jobs that are processing under these fences, and count what each job has then; attach
-- nothing if a job would have more than `most`. The condition is in a case, as above. A writer locks the row of
-- the job, so no other writer adds a name meanwhile. If one was added while this statement waited for the row,
-- which its snapshot does not show, it fails and is run again. (`on conflict` would search the index twice, and
-- write each row twice.)
with held as materialized (
    select
        job.id, job.seq, given.name, given.value, given.number + had.number as number, had.known
    from unnest(
        string_to_array(:ids, e'\x1e'), string_to_array(:fences, ' ')::bigint[],
        string_to_array(:numbers, ' ')::bigint[], :names::text[], :values::bytea[]
    ) as given (id, fence, number, name, value)
    join {jobs} as job on job.id = given.id
    cross join lateral (
        select
            count(*) as number,
            count(*) filter (where kept.name = given.name and kept.number = 0) > 0 as known
        from {attachments} as kept
        where kept.seq = job.seq
    ) as had
    where
        job.id = any(string_to_array(:ids, e'\x1e'))
        and case when job.status = {status.processing} and job.fence = given.fence then true else false end
    order by job.id for update of job
),
added as (
    insert into {attachments} (seq, name, number, value)
    select seq, name, 0, value from held
    where name is not null and not known and (select max(number) from held) <= :most::bigint
),
renewed as (
    update {attachments} as kept set value = held.value
    from held
    where
        kept.seq = any(array(select seq from held where known))  -- mostly none, and then nothing is read
        and kept.seq = held.seq and kept.name = held.name and kept.number = 0
        and (select max(number) from held) <= :most::bigint
)
select <answer> from held
