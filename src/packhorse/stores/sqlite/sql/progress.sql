-- Keep the newest progress of a job that is still this owner's.
update packhorse_jobs set progress = :progress, updated_us = :now
where id = :id and fence = :fence and status = 2
