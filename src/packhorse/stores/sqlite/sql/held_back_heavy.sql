-- Jobs under a gate that weigh more than others, so that the others might pass them.
select
    seq, id, weight, line, order_line, rank, place,
    queue, task, tenant, ordering_key, concurrency_key, rate_key
from packhorse_jobs
where
    blocked_by = :gate and weight > 1
    and (deadline_us is null or deadline_us > :now)
    and (:any_task or task in (select value from json_each(:tasks)))
order by queue, rank, place
limit :limit
