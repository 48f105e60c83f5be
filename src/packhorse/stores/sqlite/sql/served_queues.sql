-- Queues that some live worker serves.
select distinct served.value
from packhorse_workers as worker, json_each(worker.queues) as served
where worker.expires_us > ?
order by 1
