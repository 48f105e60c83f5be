-- The lines that these finished jobs still hold.
select queue, task, tenant, ordering_key, concurrency_key, rate_key from packhorse_jobs
where seq in (select value from json_each(?)) and order_line is not null
