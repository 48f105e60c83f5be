-- One job of the intake, as it will stand among the others.
select {columns}
from (
    select
        (select coalesce(max(seq), 0) from packhorse_jobs) + job.number as seq,
        job.id, job.task, job.queue,
        case when job.due_us <= job.created_us then ?2 else ?3 end as status,
        job.priority, '' as tenant,
        0 as attempts, 0 as failures, 0 as crashes, 0 as lone_crashes, 0 as snoozes, 0 as releases,
        0 as fence, job.created_us, job.created_us as updated_us, job.due_us, job.payload,
        job.trace_id, null as worker, job.timeout_us, null as deadline_us, null as started_us,
        null as finished_us, null as dead_reason, null as dead_letter, null as error,
        null as progress, null as result, null as result_until_us, job.extra,
        0 as cancel_requested, null as parked_us, null as ordering_key, null as concurrency_key,
        null as rate_key, 1 as weight
    from packhorse_intake as job
    where job.id = ?1
)
