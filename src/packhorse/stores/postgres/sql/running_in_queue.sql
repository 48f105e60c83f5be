-- How many jobs of a queue run.
select count(*) from {jobs} where lane = 4 and queue = %s
