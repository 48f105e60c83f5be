-- A waiting job is due anew, and loses its place.
update {jobs}
set
    status = %(status)s, lane = %(lane)s, rank = %(rank)s, place = %(place)s, due_us = %(due_us)s,
    kept_rank = null, kept_place = null, parked_us = null, blocked_by = null,
    ready_us = case when %(lane)s = 3 then ready_us else %(now)s end, updated_us = %(now)s
where seq = %(seq)s
