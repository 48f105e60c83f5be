-- A running job is flagged; the flag wins over any later settlement.
update packhorse_jobs set cancel_requested = 1, updated_us = :now
where seq = :seq and cancel_requested = 0
