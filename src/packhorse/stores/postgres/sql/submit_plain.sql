-- Add jobs that are alike in all but id, payload and trace to a plain queue; one whose id is known is
-- left as it is if that is said. Nothing is added if the queue or the task is not plain.
with moment as materialized (
    select now_us, coalesce(%(scheduled_us)s::bigint, now_us + %(delay_us)s) as due_us
    from (select {now} as now_us) as clock
),
entered as materialized (
    select *, %(queue)s::text <> all(queues) and %(task)s::text <> all(tasks) as plain
    from {enter}()
),
numbered as (
    select nextval('{numbers}') as seq, new.id, new.payload, new.trace_id
    from entered, unnest(
        string_to_array(%(ids)s, e'\x1e'), string_to_array(%(payloads)s, e'\x1e'),
        %(traces)s::text[]
    ) as new (id, payload, trace_id)
    where entered.plain
),
added as (
    insert into {jobs} (
        seq, id, task, queue, status, lane, rank, place, priority, due_us, created_us, updated_us,
        ready_us, timeout_us, deadline_us, tenant, trace_id, options, upstream_request_id,
        created_by, extra, payload
    )
    select
        new.seq, new.id, %(task)s, %(queue)s,
        case when due_us <= now_us then 1 else 0 end,
        case when due_us <= now_us then 0 else 3 end,
        case when due_us <= now_us then %(rank)s else due_us end,
        new.seq, %(priority)s, due_us, now_us, now_us, now_us, %(timeout_us)s::bigint,
        %(deadline_us)s::bigint, '', new.trace_id, %(options)s::text,
        %(upstream_request_id)s::text, %(created_by)s::text, %(extra)s::text, new.payload
    from numbered as new, moment
    {conflict}
    returning seq, id
),
dated as (
    insert into {deadlines} (deadline_us, seq)
    select %(deadline_us)s::bigint, seq from added where %(deadline_us)s::bigint is not null
),
tagged as (
    insert into {tags} (tag, seq)
    select tag, seq from added, unnest(%(tags)s::text[]) as tag
)
select
    entered.plain,
    case when (select count(*) from added) < %(count)s then array(select id from added) end,
    moment.due_us <= moment.now_us,
    entered.queues, entered.tasks, entered.tasked
from entered, moment
