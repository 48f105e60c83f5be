-- The good end of a job that is about to run again becomes a line of its history.
insert into {attempts} (
    seq, attempt, status, started_us, finished_us, worker, will_retry, error
)
select seq, attempts, status, started_us, finished_us, worker, false, null
from {jobs} where seq = %s
