-- What a worker holds that somebody wants cancelled.
select id from packhorse_jobs
where lane = 4 and worker = ? and cancel_requested = 1
order by seq
