-- The next due jobs of a queue, in the order they take their places.
select
    seq, priority, tenant, kept_rank, kept_place, suspect,
    line is not null or order_line is not null
from packhorse_jobs
where lane = 3 and queue = :queue and rank <= :now
order by rank, place
limit :limit
