-- A job that was held back is ready again.
update packhorse_jobs set lane = 0, blocked_by = null where seq = ? and lane = 6
