-- name: ghosts
-- Workers whose lease ended long ago and that hold no job any more.
select worker
from {workers}
where
    expires_us <= :latest
    and worker not in (select worker from {jobs} where lane = {lane.held})
order by expires_us, worker
limit :limit

-- name: ghosts_forget
-- Remove workers, unless they have renewed since.
delete from {workers} where worker {in_texts :workers} and expires_us <= :latest

-- name: holds_move
-- Extend the holds of jobs that a worker claimed before the clock was set forward.
update {jobs} set hold_us = hold_us + :step_us
where lane = {lane.held} and worker = :worker and started_us + :step_us <= :now

-- name: lease_leave
-- End the lease of a worker.
delete from {workers} where worker = ?

-- name: leases_expired
-- Workers that hold jobs and whose lease has expired, or that are not known.
select held.worker, coalesce(worker.expires_us, 0), coalesce(worker.lease_us, 0)
from (select distinct worker from {jobs} where lane = {lane.held}) as held
left join {workers} as worker on worker.worker = held.worker
where coalesce(worker.expires_us, 0) <= :now
order by held.worker

-- name: cancelled_of
-- Jobs of a worker that are to be cancelled.
select id from {jobs}
where lane = {lane.held} and worker = ? and cancel_requested = {true}
order by {unsorted seq}

-- name: held_rows
-- Jobs that a worker holds, with the settings of their queues.
select job.id, job.fence, queue.settings
from {jobs} as job
left join {queues} as queue on queue.name = job.queue
where job.lane = {lane.held} and job.worker = ?
order by {unsorted job.seq}

-- name: orphans
-- Running jobs whose lease or hold limit has expired.
select
    job.id, job.fence, job.crashes, job.lone_crashes, job.alone, job.worker,
    {least}(
        case
            when coalesce(worker.expires_us, 0) <= :now then coalesce(worker.expires_us, 0)
            else job.hold_us
        end,
        job.hold_us
    ) as lost_us,
    {options job}, queue.settings
from {jobs} as job
left join {workers} as worker on worker.worker = job.worker
left join {queues} as queue on queue.name = job.queue
where
    job.lane = {lane.held}
    and (
        (coalesce(worker.expires_us, 0) <= :now and job.worker {in_texts :workers})
        or job.hold_us <= :now
    )
order by {unsorted job.seq}
limit :limit

-- name: workers
-- The workers known, and how many jobs each holds.
select
    known.worker, known.host, known.pid, known.version, known.queues, known.tasks,
    known.concurrency, known.quiet, coalesce(held.jobs, 0), known.started_us, known.renewed_us,
    known.expires_us, known.succeeded, known.failed, known.execution_us
from {workers} as known
left join (
    select worker, count(*) as jobs from {jobs} where lane = {lane.held} group by worker
) as held on held.worker = known.worker
order by known.worker
