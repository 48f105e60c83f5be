-- The next jobs of a queue that this worker may run, as one JSON document that decodes in one go
-- (fields in the order of packhorse.job.Job), and their row numbers. In the ready lane only heads of
-- lines stand; in others that is asked.
select
    json_group_array(json_array(
        id, task, queue, fence + 1, payload, priority, tenant, attempts, failures, crashes,
        lone_crashes, snoozes, timeout_us, deadline_us, coalesce(trace_id, replace(id, '-', '')),
        json_extract(extra, '$.upstream_request_id'),
        '' || json_extract(extra, '$.options'), ready_us,
        rate_key, concurrency_key
    )),
    json_group_array(seq),
    count(*)
from (
    select
        seq, id, task, queue, fence, payload, priority, tenant, attempts, failures, crashes,
        lone_crashes, snoozes, timeout_us, deadline_us, trace_id, extra, ready_us, rate_key,
        concurrency_key
    from packhorse_jobs as job
    where
        lane = :lane and queue = :queue
        and (deadline_us is null or deadline_us > :now)
        and (:any_task or task in (select value from json_each(:tasks)))
        and (
            :lane = 0 or order_line is null or not exists (
                select 1 from packhorse_jobs as head
                where head.order_line = job.order_line and head.line_no < job.line_no
            )
        )
    order by rank, place
    limit :limit
)
