-- What a worker holds that somebody wants cancelled.
select id from {jobs} where lane = 4 and worker = %s and cancel_requested order by seq
