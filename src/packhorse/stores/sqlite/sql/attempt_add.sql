-- Add a line to the history.
insert into packhorse_attempts (
    seq, attempt, status, started_us, finished_us, worker, will_retry, error
) values (:seq, :attempt, :attempt_status, :started_us, :now, :worker, :will_retry, :error)
