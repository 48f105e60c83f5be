-- The histories of some jobs, in order.
select seq, attempt, status, started_us, finished_us, worker, will_retry, error
from {attempts}
where seq = any(%s::bigint[])
order by seq, attempt
