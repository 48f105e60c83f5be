-- The attempts of a job that ended otherwise than well, then the good end if it had one.
select attempt, status, started_us, finished_us, worker, will_retry, error
from packhorse_attempts
where seq = (select seq from packhorse_jobs where id = :id)
union all
select attempts, status, started_us, finished_us, worker, 0, null
from packhorse_jobs where id = :id and status = 3
order by 1
