-- Deadlines that have passed and bind no unfinished job any more.
delete from packhorse_deadlines
where
    deadline_us <= :now
    and not exists (
        select 1 from packhorse_jobs as job
        where
            job.seq = packhorse_deadlines.seq
            and job.deadline_us = packhorse_deadlines.deadline_us and job.lane <> 5
    )
