-- The least urgent jobs that wait in a queue, latest first, with their queue's settings.
select job.seq, queue.settings, job.priority
from packhorse_jobs as job
left join packhorse_queues as queue on queue.name = job.queue
where job.lane in (0, 1, 2, 3, 6) and job.queue = ?
order by job.priority desc, job.seq desc
limit ?
