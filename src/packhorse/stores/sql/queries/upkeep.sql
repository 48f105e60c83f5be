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
update {jobs} set result = null, expires_us = record_until_us where seq {in_numbers ?}

-- name: park
-- Park ready or blocked jobs.
update {jobs} set lane = {lane.parked}, blocked_by = null, parked_us = :now, updated_us = :now
where seq {in_numbers :seqs}

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
where seq {in_numbers :seqs}

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

-- name: park_unknown
-- The next ready jobs of a served queue whose task no live worker of that queue knows.
with head as (
    select seq, task from {jobs}
    where lane = :lane and queue = :queue
    order by rank, place
    limit :window
),
known as (
    select task.value
    from {workers} as worker
    cross join {elements worker.queues as served}
    cross join {elements worker.tasks as task}
    where worker.expires_us > :now and served.value = :queue
)
select head.seq, head.task from head
where
    head.task not in (select value from known)
    and not exists (select 1 from known where value = '*')
order by head.seq
limit :limit

-- name: deadlines_passed
-- Waiting jobs whose deadline has passed.
select
    deadline.seq,
    (
        select queue.settings from {jobs} as job
        inner join {queues} as queue on queue.name = job.queue
        where job.seq = deadline.seq
    ),
    (select id from {jobs} where seq = deadline.seq)
from {deadlines} as deadline
where
    deadline.deadline_us <= :now
    and exists (
        select 1 from {jobs} as job
        where
            job.seq = deadline.seq and job.deadline_us = deadline.deadline_us
            and {unindexed job.lane} in ({lanes.unclaimed})
        {apart}
    )
order by deadline.deadline_us, deadline.seq
limit :limit

-- name: deadline_forget
-- Remove passed deadlines that bind no unfinished job any more.
delete from {deadlines}
where
    deadline_us <= :now
    and (deadline_us, seq) in (
        select deadline.deadline_us, deadline.seq from {deadlines} as deadline
        where
            deadline.deadline_us <= :now
            and not exists (
                select 1 from {jobs} as job
                where
                    job.seq = deadline.seq and job.deadline_us = deadline.deadline_us
                    and job.finished_us is null
                {apart}
            )
        order by deadline.deadline_us, deadline.seq
        limit :limit
    )
