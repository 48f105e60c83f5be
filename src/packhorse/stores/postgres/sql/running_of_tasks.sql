-- How many jobs of limited tasks run, per key.
select task, concurrency_key, count(*) from {jobs}
where lane = 4 and task = any(%s::text[])
group by task, concurrency_key
