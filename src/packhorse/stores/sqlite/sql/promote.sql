-- A due job becomes ready, in its place; one that kept its place has been ready before.
update packhorse_jobs
set
    status = 1, lane = :lane, rank = :rank, place = :place, updated_us = :now,
    ready_us = case when kept_place is null then :now else ready_us end,
    kept_rank = null, kept_place = null
where seq = :seq
