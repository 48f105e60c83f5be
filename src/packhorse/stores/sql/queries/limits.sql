-- name: gates_holding
-- Those of these gates that block jobs.
select asked.value from {texts ? as asked}
where exists (select 1 from {jobs} where blocked_by = asked.value {apart})

-- name: blocked_any
-- Whether any job is blocked.
select exists (select 1 from {jobs} where lane = {lane.blocked})

-- name: blocked_heavy
-- Blocked jobs of a gate with a weight above 1, which lighter jobs might pass.
select
    seq, id, weight, line, order_line, rank, place,
    queue, task, tenant, ordering_key, concurrency_key, rate_key
from {jobs}
where
    blocked_by = :gate and weight > 1
    and (deadline_us is null or deadline_us > :now)
    and (:any_task or task {in_texts :tasks})
order by queue, rank, place
limit :limit

-- name: blocked_ready
-- Make blocked jobs ready again.
update {jobs} set lane = {lane.ready}, blocked_by = null
where seq {in_numbers ?} and {unindexed lane} = {lane.blocked}

-- name: block
-- Block a ready job under a gate.
update {jobs} set lane = {lane.blocked}, blocked_by = ?
where seq = ? and {unindexed lane} = {lane.ready}

-- name: running_in_queue
-- How many jobs of a queue run.
select count(*) from {jobs} where lane = {lane.held} and queue = ?

-- name: running_of_key
-- The running jobs of a task and key.
select id, tenant from {jobs}
where lane = {lane.held} and task = ? and concurrency_key {is} {text ?}
order by {unsorted seq}

-- name: running_of_queue
-- The running jobs of a queue.
select id, tenant from {jobs} where lane = {lane.held} and queue = ? order by {unsorted seq}

-- name: running_of_tasks
-- How many jobs of limited tasks run, per key.
select task, concurrency_key, count(*) from {jobs}
where lane = {lane.held} and task {in_texts ?}
group by task, concurrency_key

-- name: rate_keep
-- Keep the log of a rate gate.
insert into {rates} (gate, log) values (?, ?)
on conflict (gate) do update set log = excluded.log

-- name: rate_log
-- The log of a rate gate.
select log from {rates} where gate = ?

-- name: rate_page
-- Logs of rate gates, in the order of their gates.
select gate, log from {rates} where gate > :behind order by gate limit :limit

-- name: reopen_forget
-- Forget when a gate opens, since it is open.
delete from {reopens} where gate = ?

-- name: reopen_keep
-- Keep when time opens a gate, and when that was computed.
insert into {reopens} as known (gate, at_us, since_us) values (?, ?, ?)
on conflict (gate) do update set
    at_us = case
        when known.since_us > excluded.since_us then excluded.at_us
        else {least}(known.at_us, excluded.at_us)
    end,
    since_us = excluded.since_us

-- name: reopens_due
-- Gates that time has opened, and those written before the clock was set back.
select gate from {reopens} where at_us <= :now or since_us > :now

-- name: reopens_next
-- When time next opens a gate that blocks a job of these queues and tasks.
select min(at_us) from {reopens} as reopening
where exists (
    select 1 from {jobs} as job
    where
        job.blocked_by = reopening.gate
        and job.queue {in_texts :queues}
        and (:any_task or job.task {in_texts :tasks})
    {apart}
)

-- name: shut
-- Shut a gate until it is opened; no row if it is shut already.
insert into {shut} (gate, queue) values (?, ?) on conflict do nothing

-- name: shut_forget
-- Remove closings that are over.
delete from {shut} where gate {in_texts ?}

-- name: shut_gates
-- Gates that are shut, for a time or until they are opened.
select gate, until_us from {shut} where until_us is null or until_us > ?

-- name: shut_open
-- Open a gate that was shut.
delete from {shut} where gate = ?

-- name: shut_passed
-- Closings that are over.
select gate from {shut} where until_us <= :now order by until_us limit :limit

-- name: blocked_first
-- The first blocked jobs of a gate, a queue and a task, except those past their deadline.
select seq from {jobs}
where
    blocked_by = :gate and queue = :queue and task = :task and {unindexed lane} = {lane.blocked}
    and (deadline_us is null or deadline_us > :now)
    and ({number :heaviest} is null or weight <= {number :heaviest})
order by rank, place
limit :count

-- name: blocked_kinds
-- The queues and tasks of jobs that a gate blocks: goes from one to the next.
with recursive kind (queue, task) as (
    select
        (select queue from {jobs} where blocked_by = :gate order by queue, task limit 1),
        (select task from {jobs} where blocked_by = :gate order by queue, task limit 1)
    union all
    select
        (
            select job.queue from {jobs} as job
            where job.blocked_by = :gate and (job.queue, job.task) > (kind.queue, kind.task)
            order by job.queue, job.task limit 1
        ),
        (
            select job.task from {jobs} as job
            where job.blocked_by = :gate and (job.queue, job.task) > (kind.queue, kind.task)
            order by job.queue, job.task limit 1
        )
    from kind where kind.queue is not null
)
select queue, task from kind where queue is not null

-- name: rate_forget
-- Remove the log of a rate gate, unless it has changed since it was read.
delete from {rates} where gate = :gate and log = :log
