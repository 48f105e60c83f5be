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

-- name: deadline_forget
-- Remove passed deadlines that bind no unfinished job any more.
delete from {deadlines}
where (deadline_us, seq) in (
    select deadline.deadline_us, deadline.seq from {deadlines} as deadline
    where
        deadline.deadline_us <= :now
        and not exists (
            select 1 from {jobs} as job
            where
                job.seq = deadline.seq
                and job.deadline_us = deadline.deadline_us and job.lane <> {lane.dead}
        )
    order by deadline.deadline_us, deadline.seq
    limit :limit
)

-- name: deadlines_passed
-- Waiting jobs past their deadline. A cross join, so that deadlines are scanned and not the backlog.
select deadline.seq, queue.settings, job.id
from {deadlines} as deadline
cross join {jobs} as job
    on job.seq = deadline.seq and job.deadline_us = deadline.deadline_us
left join {queues} as queue on queue.name = job.queue
where deadline.deadline_us <= :now and job.lane in ({lanes.unclaimed})
order by deadline.deadline_us, deadline.seq
limit :limit

-- name: park_unknown
-- The next ready jobs of a served queue whose task no live worker of that queue knows.
with head as (
    select seq, queue, task from {jobs}
    where lane = :lane and queue = :queue
    order by rank, place
    limit :window
),
known as (
    select task.value
    from {workers} as worker, json_each(worker.queues) as served,
        json_each(worker.tasks) as task
    where worker.expires_us > :now and served.value = :queue
)
select head.seq, head.task from head
where head.task not in known and '*' not in known
order by head.seq
limit :limit

-- name: carry_behind
-- Block heads of lines of order that a carried job has replaced.
update {jobs}
set lane = {lane.blocked}
where
    order_line in (select value from json_each(?)) and +lane = {lane.ready}
    and exists (
        select 1 from {jobs} as head
        where head.order_line = {jobs}.order_line
            and head.line_no < {jobs}.line_no
    )

-- name: carry_numbers
-- Give out numbers above this one from now on.
update {sequence} set value = max(value, ?)
