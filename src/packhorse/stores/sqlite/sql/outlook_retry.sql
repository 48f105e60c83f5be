-- When the next retry or rescued job that these tasks could run becomes due.
select min(rank) from packhorse_jobs
where
    lane = 3 and queue in (select value from json_each(:queues))
    and (status in (4, 6) or kept_place is not null)
    and (:any_task or task in (select value from json_each(:tasks)))
    and (deadline_us is null or deadline_us > :now)
