-- A parked job is ready again, in its old place.
update packhorse_jobs
set lane = case when suspect = 1 then 1 else 0 end, parked_us = null, updated_us = :now
where seq = :seq
