-- The histories of some jobs, in order.
select seq, attempt, status, started_us, finished_us, worker, will_retry, error
from packhorse_attempts
where seq in (select value from json_each(?))
order by seq, attempt
