-- Set a job aside, held back or not.
update packhorse_jobs
set lane = 2, blocked_by = null, parked_us = :now, updated_us = :now
where seq = :seq
