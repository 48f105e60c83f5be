-- Begin or extend a worker's lease; answers when it would have run out, the moment, and how many jobs
-- the worker holds that it does not know of.
with moment as materialized (select {now} as now_us),
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
    on conflict (worker) do update set
        lease_us = excluded.lease_us, expires_us = excluded.expires_us,
        renewed_us = excluded.renewed_us, host = excluded.host, pid = excluded.pid,
        version = excluded.version, concurrency = excluded.concurrency,
        running = excluded.running, queues = excluded.queues, tasks = excluded.tasks
)
select
    (select now_us from moment),
    (select expires_us from before),
    %(ids)s::text[] is not null and exists (
        select 1 from {jobs} as job
        where
            job.lane = 4 and job.worker = %(worker)s
            and not exists (
                select 1 from unnest(%(ids)s::text[], %(fences)s::bigint[]) as known (id, fence)
                where known.id = job.id and known.fence = job.fence
            )
    )
