-- Hold back under a gate what stands behind the first jobs of a line.
update packhorse_jobs set lane = 6, blocked_by = ?1
where seq in (
    select seq from packhorse_jobs where line = ?2 and lane = 0 order by rank, place
    limit -1 offset ?3
)
