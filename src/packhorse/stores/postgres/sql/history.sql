-- The attempts of a job that ended otherwise than well, then the good end if it had one.
select attempt, status, started_us, finished_us, worker, will_retry, error
from {attempts}
where seq = (select seq from {jobs} where id = %(id)s)
union all
select attempts, status, started_us, finished_us, worker, false, null
from {jobs} where id = %(id)s and status = 3
order by 1
