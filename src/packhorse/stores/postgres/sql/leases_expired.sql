-- Owners of running jobs whose lease has run out, or that are not known at all.
select held.worker, coalesce(worker.expires_us, 0), coalesce(worker.lease_us, 0)
from (select distinct worker from {jobs} where lane = 4) as held
left join {workers} as worker on worker.worker = held.worker
where coalesce(worker.expires_us, 0) <= %(now)s
order by held.worker
