-- name: claim_next
-- The jobs of a queue that this worker knows, after a rank and place. In the ready lane all jobs are
-- heads of their lines; in other lanes that is checked.
select <columns> from {jobs} as job
where
    lane = :lane and queue = :queue
    and (deadline_us is null or deadline_us > :now)
    and (:any_task or task {in_texts :tasks}) <scope>
    and (rank, place) > (:rank, :after)
    and (
        :lane = {lane.ready} or order_line is null or not exists (
            select 1 from {jobs} as head
            where head.order_line = job.order_line and head.line_no < job.line_no
        )
    )

-- name: claim_candidates
-- The first of these jobs, with the columns that their gates depend on.
<next> order by rank, place limit :limit

-- name: claim_survey
-- Each queue of a claim, in the order of service: its settings, whether it is paused, whether it has
-- ready jobs and suspects, when its next waiting job is due; also when the worker's lease expires,
-- whether tasks have limits or gates are shut, when time next opens a gate, and when that was last
-- computed.
select
    asked.value,
    queue.settings,
    coalesce(queue.paused, {false}),
    exists (select 1 from {jobs} where lane = {lane.ready} and queue = asked.value {apart}),
    exists (select 1 from {jobs} where lane = {lane.suspect} and queue = asked.value {apart}),
    (select min(rank) from {jobs} where lane = {lane.waiting} and queue = asked.value),
    (select expires_us from {workers} where worker = :worker),
    exists (select 1 from {tasks}) or exists (select 1 from {shut}),
    (select min(at_us) from {reopens}),
    (select max(since_us) from {reopens})
from {texts :queues as asked}
left join {queues} as queue on queue.name = asked.value
order by coalesce(queue.priority, 0), asked.key

-- name: promote_due
-- The next due jobs of a queue, in the order they take their places.
select
    seq, priority, tenant, kept_rank, kept_place, line is not null or order_line is not null
from {jobs}
where lane = {lane.waiting} and queue = :queue and rank <= :now
order by rank, place
limit :limit
{skip_locked}

-- name: queues_waiting
-- Queues that have a due job: goes from queue to queue, reading the first waiting job of each.
with recursive waiting (queue) as (
    select (
        select queue from {jobs} where lane = {lane.waiting} order by queue limit 1
    )
    union all
    select (
        select job.queue from {jobs} as job
        where job.lane = {lane.waiting} and job.queue > waiting.queue
        order by job.queue
        limit 1
    )
    from waiting where waiting.queue is not null
)
select queue from waiting
where (
    select min(job.rank) from {jobs} as job
    where job.lane = {lane.waiting} and job.queue = waiting.queue
) <= ?
