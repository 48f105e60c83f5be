-- Add jobs; one whose id is known is left as it is. The runner repeats the row of values.
insert into packhorse_jobs (
    seq, id, task, queue, status, lane, rank, place, priority, due_us, created_us, updated_us,
    ready_us, timeout_us, deadline_us, tenant, trace_id, extra, payload
) values {rows}
on conflict (id) do nothing
