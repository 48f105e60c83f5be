-- Has some open queue a ready job of these tasks, held back or not, or one that is due?
select exists (
    select 1 from packhorse_jobs as job
    where
        (job.lane in (0, 1, 6) or (job.lane = 3 and job.rank <= :now))
        and job.queue in (select value from json_each(:queues))
        and (:any_task or job.task in (select value from json_each(:tasks)))
        and (job.deadline_us is null or job.deadline_us > :now)
)
