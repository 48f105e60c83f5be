-- Add jobs that come from another store, as they were there.
insert into {jobs} (
    seq, id, task, queue, status, lane, rank, place, priority, due_us, created_us, updated_us,
    ready_us, timeout_us, deadline_us, tenant, trace_id, options, upstream_request_id, created_by,
    extra, keyed, payload, fence, suspect, cancel_requested, kept_rank, kept_place, attempts,
    failures, crashes, lone_crashes, snoozes, releases, worker, started_us, finished_us,
    expires_us, record_until_us, dead_reason, dead_letter, error, progress, ordering_key,
    concurrency_key, rate_key, weight, line, order_line, line_no
)
select
    seq, id, task, queue, status, lane, rank, place, priority, due_us, created_us, updated_us,
    ready_us, timeout_us, deadline_us, tenant, trace_id, options, upstream_request_id, created_by,
    extra, keyed, payload, fence, suspect, cancel_requested, kept_rank, kept_place, attempts,
    failures, crashes, lone_crashes, snoozes, releases, worker, started_us, finished_us,
    expires_us, expires_us, dead_reason, dead_letter, error, progress, ordering_key,
    concurrency_key, rate_key, weight, line, order_line, line_no
from json_populate_recordset(null::{jobs}, %s::json)
