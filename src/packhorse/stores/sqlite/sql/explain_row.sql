-- What there is to see of a job, besides its record.
select
    job.suspect, coalesce(queue.paused, 0), job.lane,
    exists (
        select 1 from packhorse_workers as worker, json_each(worker.queues) as served
        where worker.expires_us > :now and served.value = job.queue
    ),
    exists (
        select 1 from packhorse_workers as worker, json_each(worker.queues) as served,
            json_each(worker.tasks) as known
        where
            worker.expires_us > :now and served.value = job.queue
            and known.value in (job.task, '*')
    ),
    job.seq, job.id, job.weight, job.line, job.order_line, job.rank, job.place,
    job.queue, job.task, job.tenant, job.ordering_key, job.concurrency_key, job.rate_key
from packhorse_jobs as job
left join packhorse_queues as queue on queue.name = job.queue
where job.id = :id
