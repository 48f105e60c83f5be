-- What must be known of jobs to settle them one by one; nobody else touches them until that is done.
select
    job.id, job.seq, job.status, job.fence, job.settled, job.cancel_requested, job.deadline_us,
    job.queue, job.priority, job.rank, job.place, job.due_us, job.ready_us, job.suspect, job.attempts,
    job.started_us, job.worker, job.hold_us, worker.expires_us, queue.dead_letter,
    job.error, job.tenant, job.task, job.rate_key, job.created_us, job.extra, queue.settings
from {jobs} as job
left join {workers} as worker on worker.worker = job.worker
left join {queues} as queue on queue.name = job.queue
where job.id = any(%s::text[])
order by job.id
for update of job
