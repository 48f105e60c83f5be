-- Chosen jobs in the order of choice, as one JSON document that decodes in one go
-- (fields in the order of packhorse.job.Job).
select
    json_group_array(json_array(
        id, task, queue, fence + 1, payload, priority, tenant, attempts, failures, crashes,
        lone_crashes, snoozes, timeout_us, deadline_us, coalesce(trace_id, replace(id, '-', '')),
        json_extract(extra, '$.upstream_request_id'),
        '' || json_extract(extra, '$.options'), ready_us,
        rate_key, concurrency_key
    ))
from (
    select
        job.id, task, queue, fence, payload, priority, tenant, attempts, failures, crashes,
        lone_crashes, snoozes, timeout_us, deadline_us, trace_id, extra, ready_us, rate_key,
        concurrency_key
    from json_each(:seqs) as chosen
    join packhorse_jobs as job on job.seq = chosen.value
    order by chosen.key
)
