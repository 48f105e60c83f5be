-- Set jobs aside, held back or not.
update {jobs}
set lane = 2, blocked_by = null, parked_us = %(now)s, updated_us = %(now)s
where seq = any(%(seqs)s::bigint[])
