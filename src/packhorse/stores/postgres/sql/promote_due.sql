-- The next due jobs of a queue, in the order they take their places.
select
    seq, priority, tenant, kept_rank, kept_place, suspect,
    line is not null or order_line is not null
from {jobs}
where lane = 3 and queue = %(queue)s and rank <= %(now)s
order by rank, place
limit %(limit)s
for update skip locked
