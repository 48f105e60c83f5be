-- How many jobs of limited tasks run, per key.
select task, concurrency_key, count(*) from packhorse_jobs
where lane = 4 and task in (select value from json_each(?))
group by task, concurrency_key
