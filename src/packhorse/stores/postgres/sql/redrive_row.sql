-- What must be known of a job to redrive it.
select
    id, seq, status, priority, extra,
    queue, task, tenant, ordering_key, concurrency_key, rate_key
from {jobs} where id = %s
