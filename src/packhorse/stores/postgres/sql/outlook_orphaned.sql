-- Is some job these tasks could run held by a worker whose lease is gone?
select exists (
    select 1 from {jobs} as job
    left join {workers} as worker on worker.worker = job.worker
    where
        job.lane = 4 and coalesce(worker.expires_us, 0) <= %(now)s
        and job.queue = any(%(queues)s::text[])
        and (%(any_task)s or job.task = any(%(tasks)s::text[]))
)
