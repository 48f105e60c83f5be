-- Queues that some live worker serves.
select distinct served.queue
from {workers} as worker
cross join lateral unnest(worker.queues) as served (queue)
where worker.expires_us > %s
order by 1
