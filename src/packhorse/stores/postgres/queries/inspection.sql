-- name: queues
-- Every queue declared, set, paused, closed, or holding a job.
select
    known.name, queue.settings, coalesce(queue.paused, false), queue.declared is not null,
    coalesce(queue.closed, false), queue.overridden is not null
from (
    select name from {queues} where settings is not null or paused or closed
    union
    select queue from {shut} where queue is not null
    union
    select queue from {jobs}
) as known
left join {queues} as queue on queue.name = known.name
order by known.name

-- name: counts
-- Jobs per queue and status.
select queue, status, count(*) from {jobs} group by queue, status order by 1, 2

-- name: oldest_ready
-- Since when the longest-waiting ready job of each queue and priority waits.
select queue, priority, min(ready_us) from {jobs}
where lane in ({lane.ready}, {lane.suspect}, {lane.blocked})
group by queue, priority

-- name: explain_ahead
-- Ready jobs of its queue that rank before a job, held back or not; of a suspect, suspects.
select count(*)
from {jobs} as own
cross join lateral (
    select 1 from {jobs} as other
    where
        other.lane = any(case
            when own.lane = {lane.suspect} then '{{lane.suspect}}'::smallint[]
            else '{{lane.ready}, {lane.blocked}}'
        end)
        and other.queue = own.queue and (other.rank, other.place) < (own.rank, own.place)
    offset 0
) as ahead
where own.seq = ?

-- name: outlook_ready
-- Has some open queue a ready job of these tasks, held back or not, or one that is due?
select exists (
    select 1 from unnest(:queues::text[]) as asked (queue)
    cross join unnest(
        '{{lane.ready}, {lane.suspect}, {lane.waiting}, {lane.blocked}}'::smallint[]
    ) as stands (lane)
    cross join lateral (
        select 1 from {jobs} as job
        where
            job.lane = stands.lane and job.queue = asked.queue
            and job.rank <= case
                when stands.lane = {lane.waiting} then :now else 9223372036854775807
            end
            and (:any_task or job.task = any(:tasks::text[]))
            and (job.deadline_us is null or job.deadline_us > :now)
        offset 0
    ) as found
)

-- name: outlook_retry
-- When the next retry or rescued job that these tasks could run becomes due.
select min(next.rank) from unnest(:queues::text[]) as asked (queue)
cross join lateral (
    select rank from {jobs}
    where
        lane = {lane.waiting} and queue = asked.queue
        and (status in ({status.failed}, {status.timeout}) or kept_place is not null)
        and (:any_task or task = any(:tasks::text[]))
        and (deadline_us is null or deadline_us > :now)
    order by rank
    limit 1
) as next
