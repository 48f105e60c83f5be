-- Parked jobs whose task some live worker of their queue knows again.
select job.seq, job.queue from packhorse_jobs as job
where
    job.lane = 2
    and exists (
        select 1 from packhorse_workers as worker, json_each(worker.queues) as served,
            json_each(worker.tasks) as known
        where
            worker.expires_us > :now and served.value = job.queue
            and known.value in (job.task, '*')
    )
order by job.seq
limit :limit
