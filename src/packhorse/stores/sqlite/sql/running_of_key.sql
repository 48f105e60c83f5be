-- The running jobs of a task and key.
select id, tenant from packhorse_jobs
where lane = 4 and task = ? and concurrency_key is ?
order by seq
