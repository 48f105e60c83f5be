-- Hold back under a gate what stands behind the first jobs of a line.
update {jobs} set lane = 6, blocked_by = %s
where seq = any(array(
    select seq from {jobs} where line = %s and lane = 0 order by rank, place offset %s
))
