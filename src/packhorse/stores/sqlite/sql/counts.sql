-- Unfinished jobs per lane and queue, by status, in the order of the index: nothing is sorted.
select
    queue, sum(status = 0), sum(status = 1), sum(status = 2), sum(status = 4), sum(status = 6)
from packhorse_jobs indexed by packhorse_lanes
where lane is not null
group by lane, queue
having lane <> 5
