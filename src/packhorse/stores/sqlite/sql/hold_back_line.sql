-- Hold back the rest of a line that shares all its gates, save those about to be handed over.
update packhorse_jobs set lane = 6, blocked_by = :gate
where seq in (
    select seq from packhorse_jobs
    where line = :line and lane = 0 and seq not in (select value from json_each(:picked))
    order by rank, place
    limit :limit
)
