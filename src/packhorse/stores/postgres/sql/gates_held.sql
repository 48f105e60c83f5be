-- The gates under which jobs are held back, the first of them: from gate to gate. Lines of order are
-- passed over in one step; their texts begin alike.
with recursive held (gate) as (
    select min(blocked_by) from {jobs} where blocked_by is not null
    union all
    select (
        select min(job.blocked_by) from {jobs} as job
        where
            job.blocked_by
            > case when held.gate like 'order' || chr(31) || '%%' then 'order ' else held.gate end
    )
    from held where held.gate is not null
)
select gate from held
where gate is not null and gate not like 'order' || chr(31) || '%%'
limit %s
