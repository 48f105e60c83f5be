-- Jobs of a lane that a worker knows, with the head of the line of order they stand in.
select
    (
        select head.id from packhorse_jobs as head
        where head.order_line = job.order_line order by head.line_no limit 1
    ),
    job.seq, job.id, job.weight, job.line, job.order_line, job.rank, job.place,
    job.queue, job.task, job.tenant, job.ordering_key, job.concurrency_key, job.rate_key
from packhorse_jobs as job
where
    job.lane = :lane and job.queue = :queue and (:lane <> 3 or job.rank <= :now)
    and (job.deadline_us is null or job.deadline_us > :now)
    and (:any_task or job.task in (select value from json_each(:tasks)))
    and (job.rank, job.place) > (:rank, :place)
order by job.rank, job.place
limit :limit
