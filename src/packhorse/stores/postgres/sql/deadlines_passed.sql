-- Waiting jobs whose deadline has passed.
select job.seq, queue.settings
from {deadlines} as deadline
join {jobs} as job on job.seq = deadline.seq and job.deadline_us = deadline.deadline_us
left join {queues} as queue on queue.name = job.queue
where deadline.deadline_us <= %(now)s and job.lane in (0, 1, 2, 3, 6)
order by deadline.deadline_us, deadline.seq
limit %(limit)s
