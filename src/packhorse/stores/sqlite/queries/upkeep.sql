-- name: lease_expires
-- When a worker's lease expires.
select expires_us from {workers} where worker = ?

-- name: lease_renew
-- Begin or extend a worker's lease. Only older releases read `running`, and they leave `schema` as it is.
insert into {workers} (
    worker, lease_us, expires_us, started_us, renewed_us, host, pid, version, concurrency,
    running, quiet, queues, tasks, succeeded, failed, execution_us, schema
) values (
    :worker, :lease_us, :expires_us, :now, :now, :host, :pid, :version, :concurrency,
    0, :quiet, :queues, :tasks, :succeeded, :failed, :execution_us, 3
)
on conflict (worker) do update set
    lease_us = excluded.lease_us, expires_us = excluded.expires_us,
    renewed_us = excluded.renewed_us, host = excluded.host, pid = excluded.pid,
    version = excluded.version, concurrency = excluded.concurrency,
    quiet = excluded.quiet, queues = excluded.queues, tasks = excluded.tasks,
    succeeded = max({workers}.succeeded, excluded.succeeded),
    failed = max({workers}.failed, excluded.failed),
    execution_us = max({workers}.execution_us, excluded.execution_us), schema = excluded.schema

-- name: carry_numbers
-- Give out numbers above this one from now on.
update {sequence} set value = max(value, ?)
