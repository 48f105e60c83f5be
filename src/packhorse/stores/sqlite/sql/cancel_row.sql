-- What must be known of a job to cancel it.
select
    job.seq, job.status, job.worker, job.tenant,
    json_extract(queue.settings, '$.retention') as retention
from packhorse_jobs as job
left join packhorse_queues as queue on queue.name = job.queue
where job.id = ?
