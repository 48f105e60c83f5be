-- Parked jobs are ready again, in their old places.
update {jobs}
set lane = case when suspect then 1 else 0 end, parked_us = null, updated_us = %(now)s
where seq = any(%(seqs)s::bigint[])
