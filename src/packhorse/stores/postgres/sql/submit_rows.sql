-- Add jobs with the places they were given; one whose id is known is left as it is.
insert into {jobs} (
    seq, id, task, queue, status, lane, rank, place, priority, due_us, created_us, updated_us,
    ready_us, timeout_us, deadline_us, tenant, trace_id, options, upstream_request_id, created_by,
    extra, keyed, payload
)
select
    new.seq, new.id, new.task, new.queue, new.status, new.lane, new.rank, new.seq, new.priority,
    new.due_us, %(now)s, %(now)s, %(now)s, new.timeout_us, new.deadline_us, new.tenant,
    new.trace_id, new.options, new.upstream_request_id, new.created_by, new.extra, new.keyed,
    new.payload
from unnest(
    %(seq)s::bigint[], %(id)s::text[], %(task)s::text[], %(queue)s::text[], %(status)s::bigint[],
    %(lane)s::bigint[], %(rank)s::bigint[], %(priority)s::bigint[], %(due_us)s::bigint[],
    %(timeout_us)s::bigint[], %(deadline_us)s::bigint[], %(tenant)s::text[],
    %(trace_id)s::text[], %(options)s::text[], %(upstream_request_id)s::text[],
    %(created_by)s::text[], %(extra)s::text[], %(keyed)s::boolean[], %(payload)s::text[]
) as new (
    seq, id, task, queue, status, lane, rank, priority, due_us, timeout_us, deadline_us, tenant,
    trace_id, options, upstream_request_id, created_by, extra, keyed, payload
)
on conflict (id) do nothing
returning seq
