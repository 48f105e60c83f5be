-- A running job is flagged; the flag wins over any later settlement.
update {jobs} set cancel_requested = true, updated_us = %(now)s
where seq = %(seq)s and not cancel_requested
