-- The next ready jobs of a queue that this worker knows, after a rank and place, with what their
-- gates depend on. In the ready lane only heads of lines stand; in others that is asked.
select
    seq, id, weight, line, order_line, rank, place,
    queue, task, tenant, ordering_key, concurrency_key, rate_key
from {jobs} as job
where
    lane = %(lane)s and queue = %(queue)s
    and (deadline_us is null or deadline_us > %(now)s)
    and (%(any_task)s or task = any(%(tasks)s::text[]))
    and (rank, place) > (%(rank)s, %(after)s)
    and (
        %(lane)s = 0 or order_line is null or not exists (
            select 1 from {jobs} as head
            where head.order_line = job.order_line and head.line_no < job.line_no
        )
    )
order by rank, place
limit %(limit)s
