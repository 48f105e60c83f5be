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
-- The first jobs of a lane of a queue, and how many of them wait after a failure or a timeout.
select
    count(*), count(*) filter (where status = {status.failed}),
    count(*) filter (where status = {status.timeout})
from (
    select status from {jobs} indexed by {lanes} where lane = :lane and queue = :queue limit :most
)

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
