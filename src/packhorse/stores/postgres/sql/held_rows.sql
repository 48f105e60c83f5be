-- What a worker holds, and how long its queue keeps what is over.
select job.id, job.fence, queue.settings
from {jobs} as job
left join {queues} as queue on queue.name = job.queue
where job.lane = 4 and job.worker = %s
order by job.seq
