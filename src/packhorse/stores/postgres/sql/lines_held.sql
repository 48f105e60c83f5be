-- The lines that these finished jobs still hold.
select queue, task, tenant, ordering_key, concurrency_key, rate_key from {jobs}
where seq = any(%s::bigint[]) and order_line is not null
