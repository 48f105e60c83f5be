-- The last job that took a key.
select
    job.seq, job.id, job.status, job.created_us, job.queue, job.priority, job.tenant,
    job.suspect, job.extra
from packhorse_keys as taken
join packhorse_jobs as job on job.seq = taken.seq
where taken.kind = ? and taken.tenant = ? and taken.task = ? and taken.key = ?
