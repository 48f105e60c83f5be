-- Write one settlement that applies.
update packhorse_jobs
set
    status = :status, lane = :lane, rank = :rank, place = :place,
    kept_rank = :kept_rank, kept_place = :kept_place, due_us = :due_us,
    ready_us = :ready_us, settled = :settled, suspect = :suspect, alone = 0,
    attempts = attempts + :attempts, failures = failures + :failures,
    crashes = crashes + :crashes, lone_crashes = lone_crashes + :lone_crashes,
    snoozes = snoozes + :snoozes, releases = releases + :releases,
    error = :shown_error, result = :result, dead_reason = :dead_reason, dead_letter = :dead_letter,
    finished_us = :finished_us, expires_us = :expires_us, record_until_us = :record_until_us,
    result_until_us = :result_until_us, updated_us = :now, hold_us = null, blocked_by = null,
    line = case when :finished_us is null then line end,
    order_line = case when :finished_us is null or :holds_line then order_line end
where seq = :seq
