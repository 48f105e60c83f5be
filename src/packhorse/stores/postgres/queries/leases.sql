-- name: leases_run_out
-- Leases that have run out, of workers that may hold jobs or not.
select worker, expires_us from {workers} where expires_us <= :now

-- name: held_jobs
-- Owners of running jobs whose lease has run out, or that are not known at all; and what some workers hold.
with held as materialized (select worker, id, fence from {jobs} where lane = {lane.held})
select held.worker, coalesce(worker.expires_us, 0), coalesce(worker.lease_us, 0), null, null
from (select distinct worker from held) as held
left join {workers} as worker on worker.worker = held.worker
where coalesce(worker.expires_us, 0) <= :now
union all
select worker, null, null, id, fence from held where worker = any(:own::text[])

-- name: cancelled_of
-- What a worker holds that is to be cancelled. The expression keeps other indexes out of the plan.
select id from {jobs}
where cancel_requested and worker = ? and lane is not null and lane + 0 = {lane.held}
order by seq + 0

-- name: orphans_above
-- Running jobs whose worker has lost them: of workers without a lease, or held beyond their limit,
-- which is above the floor. The `coalesce` keeps the index of lanes out of the second plan, where
-- it would be read from end to end: any other comparison says that a lane is there.
with lost as (
    select job.seq + 0 as seq from {jobs} as job
    left join {workers} as worker on worker.worker = job.worker
    where
        cardinality(:workers::text[]) > 0 and job.lane = {lane.held}
        and job.worker = any(:workers::text[]) and coalesce(worker.expires_us, 0) <= :now
    union
    select job.seq + 0 as seq from {jobs} as job
    where job.hold_us > :floor and job.hold_us <= :now and coalesce(job.lane, -1) = {lane.held}
)
select
    job.id, job.fence, job.crashes, job.lone_crashes, job.alone, job.worker,
    least(
        case
            when coalesce(worker.expires_us, 0) <= :now then coalesce(worker.expires_us, 0)
            else job.hold_us
        end,
        job.hold_us
    ) as lost_us,
    job.options
from {jobs} as job
left join {workers} as worker on worker.worker = job.worker
where job.seq = any(array(select seq from lost order by seq limit :limit))
order by job.seq + 0
