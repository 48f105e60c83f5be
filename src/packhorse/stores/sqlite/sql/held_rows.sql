-- What a worker holds, and how long its queue keeps what is over.
select job.id, job.fence, queue.settings
from packhorse_jobs as job
left join packhorse_queues as queue on queue.name = job.queue
where job.lane = 4 and job.worker = ?
order by job.seq
