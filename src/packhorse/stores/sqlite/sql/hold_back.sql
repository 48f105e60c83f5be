-- Hold back a ready job under a gate.
update packhorse_jobs set lane = 6, blocked_by = ? where seq = ? and lane = 0
