-- A finished or waiting job is ready now with fresh budgets; id, fence and history stay.
update packhorse_jobs
set
    status = 1, lane = case when suspect = 1 then 1 else 0 end, rank = :rank, place = :place,
    kept_rank = null, kept_place = null,
    due_us = :now, ready_us = :now, updated_us = :now, cancel_requested = 0, failures = 0,
    snoozes = 0, lone_crashes = 0, result = null, error = null, dead_reason = null,
    dead_letter = null, finished_us = null, expires_us = null, record_until_us = null,
    result_until_us = null,
    deadline_us = case when deadline_us > :now then deadline_us end
where seq = :seq
