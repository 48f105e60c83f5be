-- Jobs that nobody has known for too long.
select job.seq, queue.settings
from {jobs} as job
left join {queues} as queue on queue.name = job.queue
where
    job.lane = 2 and job.parked_us <= %(latest)s
    and not exists (
        select 1 from {workers} as worker
        where
            worker.expires_us > %(now)s and job.queue = any(worker.queues)
            and (job.task = any(worker.tasks) or '*' = any(worker.tasks))
    )
order by job.seq
limit %(limit)s
