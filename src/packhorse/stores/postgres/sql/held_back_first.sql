-- The first jobs of a queue and a task under a gate, save those whose deadline has passed.
select seq from {jobs}
where
    blocked_by = %(gate)s and queue = %(queue)s and task = %(task)s and lane = 6
    and (deadline_us is null or deadline_us > %(now)s)
    and (%(heaviest)s::bigint is null or weight <= %(heaviest)s::bigint)
order by rank, place
limit %(count)s
