-- Hold back the rest of a line that shares all its gates, save those about to be handed over.
update packhorse_jobs set lane = 6, blocked_by = ?1
where seq in (
    select seq from packhorse_jobs
    where line = ?2 and lane = 0 and seq not in (select value from json_each(?4))
    order by rank, place
    limit ?3
)
