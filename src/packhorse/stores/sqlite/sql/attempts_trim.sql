-- Keep the first and last 25 lines of a history that has grown longer.
delete from packhorse_attempts
where seq = :seq and attempt > :kept and attempt <= :attempt - :kept
