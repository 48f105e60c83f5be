-- Hold back a ready job under a gate.
update {jobs} set lane = 6, blocked_by = %s where seq = %s and lane = 0
