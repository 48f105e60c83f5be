-- Jobs of a lane that a worker knows, with the head of the line of order they stand in.
select
    (
        select head.id from {jobs} as head
        where head.order_line = job.order_line order by head.line_no limit 1
    ),
    job.seq, job.id, job.weight, job.line, job.order_line, job.rank, job.place,
    job.queue, job.task, job.tenant, job.ordering_key, job.concurrency_key, job.rate_key
from {jobs} as job
where
    job.lane = %(lane)s and job.queue = %(queue)s and (%(lane)s <> 3 or job.rank <= %(now)s)
    and (job.deadline_us is null or job.deadline_us > %(now)s)
    and (%(any_task)s or job.task = any(%(tasks)s::text[]))
    and (job.rank, job.place) > (%(rank)s, %(place)s)
order by job.rank, job.place
limit %(limit)s
