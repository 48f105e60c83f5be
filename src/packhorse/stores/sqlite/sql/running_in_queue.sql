-- How many jobs of a queue run.
select count(*) from packhorse_jobs where lane = 4 and queue = ?
