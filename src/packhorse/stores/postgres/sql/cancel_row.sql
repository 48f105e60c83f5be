-- What must be known of a job to cancel it; nobody else touches it until that is done.
select
    job.seq, job.status, job.worker, job.tenant, queue.settings, job.queue,
    exists (select 1 from {stash} as stashed where stashed.seq = job.seq)
from {jobs} as job
left join {queues} as queue on queue.name = job.queue
where job.id = %s
for update of job
