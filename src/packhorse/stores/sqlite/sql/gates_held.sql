-- The gates under which jobs are held back, the first of them: from gate to gate. Lines of order are
-- not among them.
with recursive held (gate) as (
    select min(blocked_by) from packhorse_jobs where blocked_by is not null
    union all
    select (
        select min(job.blocked_by) from packhorse_jobs as job
        where job.blocked_by > held.gate
    )
    from held where held.gate is not null
    limit ?
)
select gate from held where gate is not null
