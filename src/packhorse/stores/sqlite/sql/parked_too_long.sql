-- Jobs that nobody has known for too long.
select job.seq, queue.settings
from packhorse_jobs as job
left join packhorse_queues as queue on queue.name = job.queue
where
    job.lane = 2 and job.parked_us <= :latest
    and not exists (
        select 1 from packhorse_workers as worker, json_each(worker.queues) as served,
            json_each(worker.tasks) as known
        where
            worker.expires_us > :now and served.value = job.queue
            and known.value in (job.task, '*')
    )
order by job.seq
limit :limit
