-- Is some job these tasks could run held by a worker whose lease is gone?
select exists (
    select 1 from packhorse_jobs as job
    left join packhorse_workers as worker on worker.worker = job.worker
    where
        job.lane = 4 and coalesce(worker.expires_us, 0) <= :now
        and job.queue in (select value from json_each(:queues))
        and (:any_task or job.task in (select value from json_each(:tasks)))
)
