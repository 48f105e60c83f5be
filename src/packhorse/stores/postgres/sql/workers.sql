-- The workers known.
select
    worker, host, pid, version, queues, tasks, concurrency, running, started_us, renewed_us,
    expires_us
from {workers} order by worker
