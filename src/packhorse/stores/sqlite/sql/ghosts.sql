-- Workers whose lease ended long ago and that hold no job any more.
select worker
from packhorse_workers
where
    expires_us <= :latest
    and worker not in (select worker from packhorse_jobs where lane = 4)
order by expires_us, worker
limit :limit
