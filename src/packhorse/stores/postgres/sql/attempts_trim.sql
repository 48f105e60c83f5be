-- Keep the first and last 25 lines of a history that has grown longer.
delete from {attempts}
where seq = %(seq)s and attempt > %(kept)s and attempt <= %(attempt)s - %(kept)s
