-- Add a job that comes from another store, as it was there.
insert into packhorse_jobs (
    seq, id, task, queue, status, lane, rank, place, priority, due_us, created_us, updated_us,
    ready_us, timeout_us, deadline_us, tenant, trace_id, extra, payload, fence, suspect,
    cancel_requested, kept_rank, kept_place, attempts, failures, crashes, lone_crashes, snoozes,
    releases, worker, started_us, finished_us, expires_us, record_until_us, dead_reason,
    dead_letter, error, progress, ordering_key, concurrency_key, rate_key, weight, line,
    order_line, line_no
) values (
    :seq, :id, :task, :queue, :status, :lane, :rank, :place, :priority, :due_us, :created_us,
    :updated_us, :ready_us, :timeout_us, :deadline_us, :tenant, :trace_id, :extra, :payload,
    :fence, :suspect, :cancel_requested, :kept_rank, :kept_place, :attempts, :failures, :crashes,
    :lone_crashes, :snoozes, :releases, :worker, :started_us, :finished_us, :expires_us,
    :expires_us, :dead_reason, :dead_letter, :error, :progress, :ordering_key, :concurrency_key,
    :rate_key, :weight, :line, :order_line, :line_no
)
