-- Add one job that is ready at once, whose trace is made from its id, to a plain queue: `submit_alike`
-- without its lists. Nothing is added if the queue or the task is not plain.
insert into {jobs} (
    seq, rank, place, lane, id, queue, task, due_us, created_us, updated_us, status, priority, tenant,
    payload, ready_us, timeout_us, options, upstream_request_id, created_by
)
select
    seq, %(rank)s, seq, 0, %(id)s, %(queue)s, %(task)s, now_us, now_us, now_us, 1, %(priority)s, '',
    %(payload)s, now_us, %(timeout_us)s::bigint, %(options)s::text, %(upstream_request_id)s::text,
    %(created_by)s::text
from (
    select nextval('{numbers}') as seq, {now} as now_us
    where {is_plain}(%(queue)s, %(task)s)
) as new
