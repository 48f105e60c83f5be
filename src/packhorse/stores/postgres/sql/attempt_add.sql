-- Add a line to the history.
insert into {attempts} (
    seq, attempt, status, started_us, finished_us, worker, will_retry, error
) values (
    %(seq)s, %(attempt)s, %(attempt_status)s, %(started_us)s, %(now)s, %(worker)s, %(will_retry)s,
    %(error)s
)
