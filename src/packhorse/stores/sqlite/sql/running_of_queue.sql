-- The running jobs of a queue.
select id, tenant from packhorse_jobs where lane = 4 and queue = ? order by seq
