-- What a worker was given before the clock was set forward may be held as much longer.
update {jobs} set hold_us = hold_us + %(step_us)s
where lane = 4 and worker = %(worker)s and started_us + %(step_us)s <= %(now)s
