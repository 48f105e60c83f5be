-- Jobs of a queue that wait: ready or held back, suspect, parked and not yet due.
select count(*) from {jobs} where lane in (0, 1, 2, 3, 6) and queue = %s
