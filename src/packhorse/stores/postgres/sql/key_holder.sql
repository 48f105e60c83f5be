-- The last job that took a key.
select
    job.seq, job.id, job.status, job.created_us, job.queue, job.priority, job.tenant,
    job.suspect, job.extra
from {keys} as taken
join {jobs} as job on job.seq = taken.seq
where taken.kind = %s and taken.tenant = %s and taken.task = %s and taken.key = %s
for update of job
