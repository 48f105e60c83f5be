-- The running jobs of a task and key.
select id, tenant from {jobs}
where lane = 4 and task = %s and concurrency_key is not distinct from %s::text
order by seq
