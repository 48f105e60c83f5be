-- Begin or extend a worker's lease.
insert into packhorse_workers (
    worker, lease_us, expires_us, started_us, renewed_us, host, pid, version, concurrency,
    running, queues, tasks
) values (
    :worker, :lease_us, :expires_us, :now, :now, :host, :pid, :version, :concurrency,
    :running, :queues, :tasks
)
on conflict (worker) do update set
    lease_us = excluded.lease_us, expires_us = excluded.expires_us,
    renewed_us = excluded.renewed_us, host = excluded.host, pid = excluded.pid,
    version = excluded.version, concurrency = excluded.concurrency,
    running = excluded.running, queues = excluded.queues, tasks = excluded.tasks
