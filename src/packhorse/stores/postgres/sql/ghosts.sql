-- Workers whose lease ended long ago and that hold no job any more.
select worker
from {workers}
where
    expires_us <= %(latest)s
    and worker not in (select worker from {jobs} where lane = 4)
order by expires_us, worker
limit %(limit)s
