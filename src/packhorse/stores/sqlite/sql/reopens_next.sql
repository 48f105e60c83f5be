-- When time next opens a gate that holds back a job of these queues and tasks.
select min(at_us) from packhorse_reopens as reopening
where exists (
    select 1 from packhorse_jobs as job
    where
        job.blocked_by = reopening.gate
        and job.queue in (select value from json_each(:queues))
        and (:any_task or job.task in (select value from json_each(:tasks)))
)
