-- What there is to see of a job, besides its record.
select
    job.suspect, coalesce(queue.paused, false), job.lane,
    exists (
        select 1 from {workers} as worker
        where worker.expires_us > %(now)s and job.queue = any(worker.queues)
    ),
    exists (
        select 1 from {workers} as worker
        where
            worker.expires_us > %(now)s and job.queue = any(worker.queues)
            and (job.task = any(worker.tasks) or '*' = any(worker.tasks))
    ),
    job.seq, job.id, job.weight, job.line, job.order_line, job.rank, job.place,
    job.queue, job.task, job.tenant, job.ordering_key, job.concurrency_key, job.rate_key
from {jobs} as job
left join {queues} as queue on queue.name = job.queue
where job.id = %(id)s
