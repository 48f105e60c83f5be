-- A finished or waiting job is ready now with fresh budgets; id, fence and history stay.
update {jobs}
set
    status = 1, lane = case when suspect then 1 else 0 end, rank = %(rank)s, place = %(place)s,
    kept_rank = null, kept_place = null,
    due_us = %(now)s, ready_us = %(now)s, updated_us = %(now)s, cancel_requested = false,
    failures = 0, snoozes = 0, lone_crashes = 0, result = null, error = null, dead_reason = null,
    dead_letter = null, finished_us = null, expires_us = null, record_until_us = null,
    result_until_us = null,
    deadline_us = case when deadline_us > %(now)s then deadline_us end
where seq = %(seq)s
