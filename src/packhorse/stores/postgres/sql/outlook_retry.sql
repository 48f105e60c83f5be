-- When the next retry or rescued job that these tasks could run becomes due.
select min(rank) from {jobs}
where
    lane = 3 and queue = any(%(queues)s::text[])
    and (status in (4, 6) or kept_place is not null)
    and (%(any_task)s or task = any(%(tasks)s::text[]))
    and (deadline_us is null or deadline_us > %(now)s)
