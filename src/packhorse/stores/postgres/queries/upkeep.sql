-- name: lease_renew
-- Begin or extend a worker's lease; answers the moment, when the lease would have run out, and whether
-- the worker holds jobs that it does not know of, among those looked at. If so, nothing is done unless
-- that is said.
-- Column `running` is older releases': jobs are counted where they are.
with moment as materialized (
    select
        {now} as now_us,
        :ids::text[] is not null and exists (
            select 1 from {jobs} as job
            where
                <looked> and job.worker = :worker
                and (job.id, job.fence) not in (
                    select * from unnest(:ids::text[], :fences::bigint[])
                )
        ) as lost
),
before as (select expires_us from {workers} where worker = :worker),
renewed as (
    insert into {workers} as kept (
        worker, lease_us, expires_us, started_us, renewed_us, host, pid, version, concurrency,
        running, quiet, queues, tasks, succeeded, failed, execution_us
    )
    select
        :worker, :lease_us, least(now_us, :asked_us) + :lease_us, now_us, now_us, :host, :pid,
        :version, :concurrency, 0, :quiet, :queues::text[], :tasks::text[],
        :succeeded, :failed, :execution_us
    from moment
    where :anyway or not lost
    on conflict (worker) do update set
        lease_us = excluded.lease_us,
        expires_us = least(  -- as `policies.lease.renewed_until_us` says
            excluded.renewed_us + excluded.lease_us, greatest(excluded.expires_us, kept.expires_us)
        ),
        renewed_us = excluded.renewed_us, host = excluded.host, pid = excluded.pid,
        version = excluded.version, concurrency = excluded.concurrency,
        quiet = excluded.quiet, queues = excluded.queues, tasks = excluded.tasks,
        succeeded = greatest(kept.succeeded, excluded.succeeded),
        failed = greatest(kept.failed, excluded.failed),
        execution_us = greatest(kept.execution_us, excluded.execution_us)
)
select now_us, (select expires_us from before), lost from moment

-- name: carry_numbers
-- Numbers are given out behind this one from now on.
select setval('{numbers}', greatest(last_value, ?::bigint)) from {numbers}
