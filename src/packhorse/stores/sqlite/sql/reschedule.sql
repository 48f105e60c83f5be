-- A waiting job is due anew, and loses its place.
update packhorse_jobs
set
    status = :status, lane = :lane, rank = :rank, place = :place, due_us = :due_us,
    kept_rank = null, kept_place = null, parked_us = null, blocked_by = null,
    ready_us = case when :lane = 3 then ready_us else :now end, updated_us = :now
where seq = :seq
