-- name: queues
-- Every queue declared, set, paused, closed, or holding a job.
select
    known.name, queue.settings, coalesce(queue.paused, 0), queue.declared is not null,
    coalesce(queue.closed, 0), queue.overridden is not null
from (
    select name from {queues} where settings is not null or paused = 1 or closed = 1
    union
    select queue from {shut} where queue is not null
    union
    select queue from {jobs} where lane is not null
    union
    select queue from {jobs} indexed by {finished} where finished_us is not null
) as known
left join {queues} as queue on queue.name = known.name
order by known.name

-- name: counts_stands
-- The lanes and queues that have unfinished or dead jobs: one index lookup for each.
with recursive heads (seq) as (
    select (
        select seq from {jobs} indexed by {lanes} where lane is not null order by lane, queue limit 1
    )
    union all
    select coalesce(
        (
            select seq from {jobs} indexed by {lanes}
            where lane = own.lane and queue > own.queue order by queue limit 1
        ),
        (
            select seq from {jobs} indexed by {lanes}
            where lane > own.lane order by lane, queue limit 1
        )
    )
    from heads cross join {jobs} as own on own.seq = heads.seq
)
select own.lane, own.queue from heads cross join {jobs} as own on own.seq = heads.seq

-- name: counts_stand
-- The first jobs of a lane of a queue, by status.
select status, count(*)
from (
    select status from {jobs} indexed by {lanes} where lane = :lane and queue = :queue limit :most
)
group by status

-- name: counts_newest
-- Finished jobs that are kept longest, per queue and status.
select queue, status, count(*)
from (
    select queue, status from {jobs} indexed by {finished}
    where finished_us is not null and expires_us is not null
    order by expires_us desc
    limit :most
)
group by queue, status

-- name: counts_lasting
-- Some of the finished jobs that are kept for ever, per queue and status.
select queue, status, count(*)
from (
    select queue, status from {jobs} indexed by {finished}
    where finished_us is not null and expires_us is null
    limit :most
)
group by queue, status

-- name: counts
-- Unfinished jobs per lane and queue, by status, in the order of the index: nothing is sorted.
select
    queue, sum(status = {status.pending}), sum(status = {status.queued}),
    sum(status = {status.processing}), sum(status = {status.failed}), sum(status = {status.timeout})
from {jobs} indexed by {lanes}
where lane is not null
group by lane, queue
having lane <> {lane.dead}

-- name: counts_kept
-- Finished jobs that are kept for ever, per queue and status, in the order of the index.
select queue, status, count(*) from {jobs} indexed by {finished}
where finished_us is not null and expires_us is null
group by queue, status

-- name: counts_page
-- Finished jobs per queue and status, from one page of the index.
select queue, status, count(*)
from (
    select queue, status from {jobs} indexed by {finished}
    where
        finished_us is not null
        and (expires_us, queue, status, seq) > (:expires_us, :queue, :status, :seq)
    order by expires_us, queue, status, seq
    limit :size
)
group by queue, status

-- name: counts_page_end
-- The last job of a page of finished ones; no row if there is no full page left.
select expires_us, queue, status, seq from {jobs} indexed by {finished}
where
    finished_us is not null
    and (expires_us, queue, status, seq) > (:expires_us, :queue, :status, :seq)
order by expires_us, queue, status, seq
limit 1 offset :size - 1

-- name: oldest_ready
-- Since when the longest-waiting of the next ready jobs of each queue and priority waits: of those
-- ranked by priority, and of those ranked by age, which mixes all priorities.
select
    queue.value,
    level.value,
    (
        select min(head.ready_us) from (
            select ready_us from {jobs}
            where
                lane in ({lane.ready}, {lane.suspect}, {lane.blocked}) and queue = queue.value
                and rank >= level.value * :passes and rank < (level.value + 1) * :passes
            limit :window
        ) as head
    ),
    (
        select min(head.ready_us) from (
            select ready_us, priority from {jobs}
            where
                lane in ({lane.ready}, {lane.suspect}, {lane.blocked})
                and queue = queue.value and rank >= :aged
            limit :window
        ) as head
        where head.priority = level.value
    )
from json_each(:queues) as queue, json_each(:levels) as level

-- name: explain_ahead
-- Ready or blocked jobs of its queue that rank before a job; of a suspect, suspects.
select count(*)
from (
    select 1
    from {jobs} as own
    cross join {jobs} as other
    where
        own.seq = :seq
        and other.lane in (
            iif(own.lane = {lane.suspect}, {lane.suspect}, {lane.ready}),
            iif(own.lane = {lane.suspect}, {lane.suspect}, {lane.blocked})
        )
        and other.queue = own.queue and (other.rank, other.place) < (own.rank, own.place)
    limit :most
)

-- name: outlook_ready
-- Whether an open queue has a ready, blocked or due job of these tasks.
select exists (
    select 1 from {jobs} as job
    where
        (
            job.lane in ({lane.ready}, {lane.suspect}, {lane.blocked})
            or (job.lane = {lane.waiting} and job.rank <= :now)
        )
        and job.queue in (select value from json_each(:queues))
        and (:any_task or job.task in (select value from json_each(:tasks)))
        and (job.deadline_us is null or job.deadline_us > :now)
)

-- name: outlook_retry
-- When the next retry or rescued job that these tasks could run becomes due.
select min(rank) from {jobs}
where
    lane = {lane.waiting} and queue in (select value from json_each(:queues))
    and (status in ({status.failed}, {status.timeout}) or kept_place is not null)
    and (:any_task or task in (select value from json_each(:tasks)))
    and (deadline_us is null or deadline_us > :now)
