-- Jobs under a gate that weigh more than others, so that the others might pass them.
select
    seq, id, weight, line, order_line, rank, place,
    queue, task, tenant, ordering_key, concurrency_key, rate_key
from {jobs}
where
    blocked_by = %(gate)s and weight > 1
    and (deadline_us is null or deadline_us > %(now)s)
    and (%(any_task)s or task = any(%(tasks)s::text[]))
order by queue, rank, place
limit %(limit)s
