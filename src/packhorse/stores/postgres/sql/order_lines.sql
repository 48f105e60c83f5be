-- The lines of order that hold back jobs, the first of them: from line to line. As gates, their
-- texts begin alike.
with recursive held (line) as (
    select min(blocked_by) from {jobs}
    where blocked_by >= 'order' || chr(31) and blocked_by < 'order '
    union all
    select (
        select min(job.blocked_by) from {jobs} as job
        where job.blocked_by > held.line and job.blocked_by < 'order '
    )
    from held where held.line is not null
)
select line from held where line is not null limit %s
