-- What must be known of a job to cancel it.
select
    job.seq, job.status, job.worker, job.tenant, queue.settings, job.queue,
    exists (select 1 from packhorse_stash as stashed where stashed.seq = job.seq)
from packhorse_jobs as job
left join packhorse_queues as queue on queue.name = job.queue
where job.id = ?
