-- Deadlines that have passed and bind no unfinished job any more.
delete from {deadlines} as deadline
where
    deadline_us <= %(now)s
    and not exists (
        select 1 from {jobs} as job
        where
            job.seq = deadline.seq and job.deadline_us = deadline.deadline_us
            and job.finished_us is null
    )
