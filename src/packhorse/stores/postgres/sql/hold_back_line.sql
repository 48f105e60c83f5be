-- Hold back the rest of a line that shares all its gates, save those about to be handed over. An array
-- is made once; a subquery the planner might go through again for every job, taking the table for small.
update {jobs} set lane = 6, blocked_by = %(gate)s
where seq = any(array(
    select seq from {jobs}
    where line = %(line)s and lane = 0 and seq <> all(%(picked)s::bigint[])
    order by rank, place
    limit %(limit)s
))
