-- name: counts_some
-- Of each lane of each queue the first jobs, and whether there are more; one look into the index
-- finds the next lane. Only where statuses are mixed the jobs themselves are read, and fewer of them.
with recursive heads as (
    (select lane, queue from {jobs} where lane is not null order by lane, queue limit 1)
    union all
    select next.lane, next.queue from heads
    cross join lateral (
        select lane, queue from {jobs}
        where lane is not null and (lane, queue) > (heads.lane, heads.queue)
        order by lane, queue
        limit 1
    ) as next
),
bounds as (
    select
        least(:most::bigint, greatest(:least::bigint, 5 * :most::bigint / greatest(1, lanes))) as of_lane,
        least(:most::bigint, greatest(:least::bigint, :most::bigint / greatest(1, mixed))) as of_mixed
    from (
        select count(*) as lanes, count(*) filter (where lane = {lane.waiting}) as mixed from heads
    ) as stands
)
select heads.lane, heads.queue, null::smallint, part.jobs, part.jobs >= bounds.of_lane
from heads
cross join bounds
cross join lateral (
    select count(*) as jobs
    from (
        select 1 from {jobs} where lane = heads.lane and queue = heads.queue limit bounds.of_lane
    ) as first
) as part
where heads.lane <> {lane.waiting}
union all
select heads.lane, heads.queue, part.status, part.jobs, sum(part.jobs) over whole >= bounds.of_mixed
from heads
cross join bounds
cross join lateral (
    select first.status, count(*) as jobs
    from (
        select status from {jobs}
        where lane = heads.lane and queue = heads.queue
        limit bounds.of_mixed
    ) as first
    group by first.status
) as part
where heads.lane = {lane.waiting}
window whole as (partition by heads.queue)

-- name: counts_newest
-- Of finished jobs those that are kept longest, per queue and status.
select part.queue, part.status, count(*)
from (
    select queue, status from {jobs} where expires_us is not null order by expires_us desc limit :most
) as part
group by part.queue, part.status

-- name: counts_lasting
-- The oldest jobs per queue and status, and whether they are finished and kept for ever.
select part.queue, part.status, count(*), part.lane is null and part.expires_us is null
from (select queue, status, lane, expires_us from {jobs} order by seq limit :most) as part
group by 1, 2, 4

-- name: oldest_some
-- Since when the longest-waiting of the next ready jobs of each queue and priority waits.
select asked.queue, part.priority, min(part.ready_us)
from unnest(:queues::text[]) as asked (queue)
cross join unnest('{{lane.ready}, {lane.suspect}, {lane.blocked}}'::smallint[]) as stands (lane)
cross join unnest(:lows::bigint[], :highs::bigint[]) as level (low, high)
cross join lateral (
    select priority, ready_us from {jobs}
    where
        lane = stands.lane and queue = asked.queue
        and rank >= level.low and rank < level.high
    order by rank
    limit :most
) as part
group by asked.queue, part.priority

-- name: counts
-- Jobs per queue and status.
select queue, status, count(*) from {jobs} group by queue, status order by 1, 2

-- name: oldest_ready
-- Since when the longest-waiting ready job of each queue and priority waits.
select queue, priority, min(ready_us) from {jobs}
where lane in ({lane.ready}, {lane.suspect}, {lane.blocked})
group by queue, priority
