-- name: expired_records
-- Finished jobs whose record or result has expired. Members are kept while the records of their
-- groups exist, unless they ended before `latest`.
select
    seq, record_until_us is not null and record_until_us <= :now as whole,
    finished_us > :latest and exists (
        select 1 from {records} as head
        where
            head.name = {member job} and (head.expires_us is null or head.expires_us > :now)
        {apart}
    ) as kept
from {jobs} as job
where job.finished_us is not null and job.expires_us is not null and job.expires_us <= :now
order by job.expires_us, job.seq
limit :limit

-- name: result_drop
-- Remove results that have expired; the records stay.
update {jobs} set result = null, expires_us = record_until_us where seq {each :seq}

-- name: park
-- Park ready or blocked jobs.
update {jobs} set lane = {lane.parked}, blocked_by = null, parked_us = :now, updated_us = :now
where seq {each :seq}

-- name: parked_known
-- Parked jobs whose task some live worker of their queue knows again.
select job.seq, job.queue
from {jobs} as job
where
    job.lane = {lane.parked}
    and exists (
        select 1 from {workers} as worker
        where
            worker.expires_us > :now and job.queue {in_column worker.queues}
            and (job.task {in_column worker.tasks} or '*' {in_column worker.tasks})
    )
order by {unsorted job.seq}
limit :limit

-- name: parked_ready
-- Make parked jobs ready again, in their old places.
update {jobs}
set
    lane = case when suspect = {true} then {lane.suspect} else {lane.ready} end,
    parked_us = null, updated_us = :now
where seq {each :seq}

-- name: parked_too_long
-- Jobs that were parked too long ago, and whose task no worker knows.
select job.seq, queue.settings, job.id
from {jobs} as job
left join {queues} as queue on queue.name = job.queue
where
    job.lane = {lane.parked} and job.parked_us <= :latest
    and not exists (
        select 1 from {workers} as worker
        where
            worker.expires_us > :now and job.queue {in_column worker.queues}
            and (job.task {in_column worker.tasks} or '*' {in_column worker.tasks})
    )
order by {unsorted job.seq}
limit :limit
