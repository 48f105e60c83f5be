-- name: job
-- All columns of one job.
select <columns> from {jobs} as job where id = ?

-- name: history
-- The attempts of a job that did not complete it, then the one that did.
select attempt, status, started_us, finished_us, worker, will_retry, error
from {attempts}
where seq = (select seq from {jobs} where id = :id)
union all
select attempts, status, started_us, finished_us, worker, {false}, null
from {jobs} where id = :id and status = {status.completed}
order by 1

-- name: search
-- Jobs that match a filter, newest first; the caller adds the conditions.
select <columns> from {jobs} as job
where <conditions>
order by seq desc
limit :limit

-- name: search_standing
-- Some jobs of a lane; the caller adds the queue, if one is given.
select seq from {jobs} as job
where lane = :lane and <conditions>
order by queue, rank, place
limit :most

-- name: dead_queues
-- The queues that have dead letters: one look into the index for each.
with recursive heads (queue) as (
    select (
        select queue from {jobs} where lane = {lane.dead} order by queue limit 1
    )
    union all
    select (
        select queue from {jobs} where lane = {lane.dead} and queue > heads.queue order by queue limit 1
    )
    from heads where heads.queue is not null
)
select queue from heads where queue is not null

-- name: chosen_finished
-- Finished jobs that match a filter, oldest first; the caller adds the conditions. Members of groups
-- that have not ended are spared: the record of one that has expires.
select seq from {jobs} as job
where
    finished_us is not null and seq > :after and <conditions>
    and not exists (
        select 1 from {records} as head
        where head.name = {member job} and head.expires_us is null
        {apart}
    )
order by seq
limit :limit

-- name: explain_row
-- What explains the state of a job, besides its record.
select
    job.suspect, coalesce(queue.paused, {false}), job.lane, job.hold_us,
    job.seq, job.id, job.weight, job.line, job.order_line, job.rank, job.place,
    job.queue, job.task, job.tenant, job.ordering_key, job.concurrency_key, job.rate_key
from {jobs} as job
left join {queues} as queue on queue.name = job.queue
where job.id = ?

-- name: outlook_candidates
-- Jobs of a lane that a worker knows, with the heads of their lines of order.
select
    (
        select head.id from {jobs} as head
        where head.order_line = job.order_line order by head.line_no limit 1
    ),
    job.seq, job.id, job.weight, job.line, job.order_line, job.rank, job.place,
    job.queue, job.task, job.tenant, job.ordering_key, job.concurrency_key, job.rate_key
from {jobs} as job
where
    job.lane = :lane and job.queue = :queue and (:lane <> {lane.waiting} or job.rank <= :now)
    and (job.deadline_us is null or job.deadline_us > :now)
    and (:any_task or job.task {in_texts :tasks})
    and (job.rank, job.place) > (:rank, :place)
order by job.rank, job.place
limit :limit

-- name: outlook_orphaned
-- Whether a worker whose lease has expired holds a job of these tasks.
select exists (
    select 1 from {jobs} as job
    left join {workers} as worker on worker.worker = job.worker
    where
        job.lane = {lane.held} and coalesce(worker.expires_us, 0) <= :now
        and job.queue {in_texts :queues}
        and (:any_task or job.task {in_texts :tasks})
)

-- name: explain_ahead
-- Jobs of one or two lanes of a queue that rank before a job.
select count(*)
from (
    select 1 from {jobs}
    where
        lane in (:lane, :other_lane) and queue = :queue and (rank, place) < (:rank, :place)
    limit :most
) as ahead

-- name: outlook_ready
-- Whether an open queue has a ready, blocked or due job of these tasks.
select exists (
    select 1 from {texts :queues as asked}
    where
        exists (
            select 1 from {jobs} as job
            where
                job.lane in ({lane.ready}, {lane.suspect}, {lane.blocked})
                and job.queue = asked.value
                and (:any_task or job.task {in_texts :tasks})
                and (job.deadline_us is null or job.deadline_us > :now)
            {apart}
        )
        or exists (
            select 1 from {jobs} as job
            where
                job.lane = {lane.waiting} and job.queue = asked.value and job.rank <= :now
                and (:any_task or job.task {in_texts :tasks})
                and (job.deadline_us is null or job.deadline_us > :now)
            {apart}
        )
)

-- name: outlook_retry
-- When the next retry or rescued job that these tasks could run becomes due.
select min(next.rank)
from (
    select (
        select job.rank from {jobs} as job
        where
            job.lane = {lane.waiting} and job.queue = asked.value
            and (job.status in ({status.failed}, {status.timeout}) or job.kept_place is not null)
            and (:any_task or job.task {in_texts :tasks})
            and (job.deadline_us is null or job.deadline_us > :now)
        order by job.rank
        limit 1
    ) as rank
    from {texts :queues as asked}
) as next

-- name: queues
-- Every queue declared, set, paused or closed, and if asked for, those that hold a job.
select
    known.name, queue.settings, coalesce(queue.paused, {false}), queue.declared is not null,
    coalesce(queue.closed, {false}), queue.overridden is not null
from (
    select name from {queues} where settings is not null or paused or closed
    union
    select queue from {shut} where queue is not null
    union
    select job.queue from ({queues_of_jobs}) as job where :holding
) as known
left join {queues} as queue on queue.name = known.name
order by known.name

-- name: search_bound
-- The last job that a search reads; the caller says in which order.
select seq from {jobs} where seq <beyond> :beyond order by seq <order> limit 1 offset :most - 1

-- name: search_tagged
-- The next jobs with a tag; as a range, so that the index by tag is the only one in that order.
select seq from {tags}
where tag <within> :tag and (tag, seq) <beyond> (:tag, :beyond)
order by tag <order>, seq <order>
limit :most

-- name: search_dead
-- The next dead letters of a queue, by their numbers.
select rank from {jobs}
where lane = {lane.dead} and queue = :queue and rank <beyond> :beyond
order by rank <order>
limit :most
