-- Add jobs that are ready at once, and alike in all but id, payload and trace, to a plain queue. Nothing is
-- added if the queue or the task is not plain.
insert into {jobs} (
    seq, rank, place, lane, id, queue, task, due_us, created_us, updated_us, status, priority, tenant,
    payload, ready_us, trace_id, timeout_us, options, upstream_request_id, created_by
)
select
    seq, %(rank)s, seq, 0, id, %(queue)s, %(task)s, now_us, now_us, now_us, 1, %(priority)s, '',
    payload, now_us, trace_id, %(timeout_us)s::bigint, %(options)s::text, %(upstream_request_id)s::text,
    %(created_by)s::text
from (
    select nextval('{numbers}') as seq, id, payload, trace_id, {now} as now_us
    from unnest(
        string_to_array(%(ids)s, e'\x1e'), string_to_array(%(payloads)s, e'\x1e'),
        %(traces)s::text[]
    ) as given (id, payload, trace_id)
    where (
        select %(queue)s::text <> all(queues) and %(task)s::text <> all(tasks) from {enter}()
    )
) as new
