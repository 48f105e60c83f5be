-- Begin or extend a worker's lease; answers the moment, when the lease would have run out, and whether
-- the worker holds jobs that it does not know of. If so, nothing is done unless that is said.
with moment as materialized (
    select
        {now} as now_us,
        %(ids)s::text[] is not null and exists (
            select 1 from {jobs} as job
            where
                job.lane = 4 and job.worker = %(worker)s
                and not exists (
                    select 1 from unnest(%(ids)s::text[], %(fences)s::bigint[]) as known (id, fence)
                    where known.id = job.id and known.fence = job.fence
                )
        ) as lost
),
before as (select expires_us from {workers} where worker = %(worker)s),
renewed as (
    insert into {workers} (
        worker, lease_us, expires_us, started_us, renewed_us, host, pid, version, concurrency,
        running, queues, tasks
    )
    select
        %(worker)s, %(lease_us)s, now_us + %(lease_us)s, now_us, now_us, %(host)s, %(pid)s,
        %(version)s, %(concurrency)s, %(running)s, %(queues)s::text[], %(tasks)s::text[]
    from moment
    where %(anyway)s or not lost
    on conflict (worker) do update set
        lease_us = excluded.lease_us, expires_us = excluded.expires_us,
        renewed_us = excluded.renewed_us, host = excluded.host, pid = excluded.pid,
        version = excluded.version, concurrency = excluded.concurrency,
        running = excluded.running, queues = excluded.queues, tasks = excluded.tasks
)
select now_us, (select expires_us from before), lost from moment
