-- Jobs that were held back are ready again.
update {jobs} set lane = 0, blocked_by = null where seq = any(%s::bigint[]) and lane = 6
