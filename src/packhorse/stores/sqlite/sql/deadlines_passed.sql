-- Waiting jobs whose deadline has passed. Cross, so that deadlines are walked and not the backlog.
select deadline.seq, queue.settings
from packhorse_deadlines as deadline
cross join packhorse_jobs as job
    on job.seq = deadline.seq and job.deadline_us = deadline.deadline_us
left join packhorse_queues as queue on queue.name = job.queue
where deadline.deadline_us <= :now and job.lane in (0, 1, 2, 3, 6)
order by deadline.deadline_us, deadline.seq
limit :limit
