-- What a worker was given before the clock was set forward may be held as much longer.
update packhorse_jobs set hold_us = hold_us + :step_us
where lane = 4 and worker = :worker and started_us + :step_us <= :now
