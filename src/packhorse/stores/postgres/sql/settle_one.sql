-- Write one settlement that applies.
update {jobs}
set
    status = %(status)s, lane = %(lane)s, rank = %(rank)s, place = %(place)s,
    kept_rank = %(kept_rank)s, kept_place = %(kept_place)s, due_us = %(due_us)s,
    ready_us = %(ready_us)s, settled = %(settled)s, suspect = %(suspect)s, alone = false,
    attempts = attempts + %(attempts)s, failures = failures + %(failures)s,
    crashes = crashes + %(crashes)s, lone_crashes = lone_crashes + %(lone_crashes)s,
    snoozes = snoozes + %(snoozes)s, releases = releases + %(releases)s,
    error = %(shown_error)s, result = %(result)s, dead_reason = %(dead_reason)s,
    dead_letter = %(dead_letter)s, finished_us = %(finished_us)s, expires_us = %(expires_us)s,
    record_until_us = %(record_until_us)s, result_until_us = %(result_until_us)s,
    updated_us = %(now)s, hold_us = null, blocked_by = null,
    line = case when %(finished_us)s::bigint is null then line end,
    order_line = case
        when %(finished_us)s::bigint is null or %(holds_line)s then order_line
    end
where seq = %(seq)s
