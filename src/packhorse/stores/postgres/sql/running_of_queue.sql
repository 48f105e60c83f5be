-- The running jobs of a queue.
select id, tenant from {jobs} where lane = 4 and queue = %s order by seq
