-- name: shed
-- The least urgent jobs that wait in a queue, latest first, with their queue's settings.
select job.seq, queue.settings, job.id, job.priority, coalesce(job.bytes, 0)
from {jobs} as job
left join {queues} as queue on queue.name = job.queue
where job.lane in ({lanes.unclaimed}) and job.queue = ? and not (
    job.lane = {lane.waiting} and job.attempts > 0 and ( -- not `exists`: that would be hashed
        select 1 from {attachments} as kept
        where kept.seq = job.seq and kept.name = '' and kept.number = 0 and kept.value = {fence_bytes job}
    ) is not null
)
order by job.priority desc, job.seq desc
limit ? offset ?

-- name: bytes
-- Bytes of the payloads of unfinished jobs that are counted: those of a queue, or all.
select cast(coalesce(sum(bytes), 0) as bigint) from {jobs}
where bytes is not null and lane <> {lane.dead} and <bounded>

-- name: bytes_begin
-- Count the unfinished jobs of a queue, or all.
update {jobs} set bytes = {payload_bytes}
where lane in ({lanes.unclaimed}, {lane.held}) and bytes is null and <bounded>

-- name: bytes_keep
-- Count jobs, or count them again.
update {jobs} set bytes = {payload_bytes} where id {in_texts ?}

-- name: bytes_again
-- Count a job again if it was counted.
update {jobs} set bytes = {payload_bytes} where id = ? and bytes is not null

-- name: depth
-- Waiting jobs of a queue: ready, blocked, suspect, parked or not yet due.
select count(*) from {jobs} where lane in ({lanes.unclaimed}) and queue = ?

-- name: depth_in_steps
-- How many of them wait in a step of their handler, which their fence marks.
select count(*) from {jobs} as job
where job.lane = {lane.waiting} and job.queue = ? and job.attempts > 0 and ( -- see `shed`
    select 1 from {attachments} as kept
    where kept.seq = job.seq and kept.name = '' and kept.number = 0 and kept.value = {fence_bytes job}
) is not null

-- name: counts_in_steps
-- The same among the first waiting jobs of a queue.
select count(*)
from (
    select seq, attempts, fence from {jobs}
    where lane = {lane.waiting} and queue = :queue
    order by rank, place
    limit :most
) as job
where job.attempts > 0 and (
    select 1 from {attachments} as kept
    where kept.seq = job.seq and kept.name = '' and kept.number = 0 and kept.value = {fence_bytes job}
) is not null

-- name: known
-- Statuses of the stored jobs among these ids.
select id, status from {jobs} where id {in_texts ?}

-- name: known_as
-- What tells a repeated submit of these ids from another job.
select id, task, tenant, {payload}, extra from {jobs} where id {in_texts ?}

-- name: queue_rows
-- Queues as a submit needs them; the columns are those of `QueueRow`.
select
    asked.value,
    queue.settings,
    coalesce(queue.closed, {false}) or exists (select 1 from {copied}),
    coalesce(queue.tenanted, {false}),
    exists (select 1 from {queues} as other where other.dead_letter = asked.value),
    exists (select 1 from {tasks}),
    {lined queue},
    {last_number},
    (select settings from {queues} where name = '') -- of the store itself
from {texts ? as asked}
left join {queues} as queue on queue.name = asked.value

-- name: submit_deadlines
-- Index the deadlines of jobs just inserted.
insert into {deadlines} (deadline_us, seq)
select deadline_us, seq from {jobs} where id {in_texts ?} and deadline_us is not null
on conflict do nothing

-- name: submit_tags
-- Index the tags of jobs just inserted.
insert into {tags} (tag, seq)
select tag.value, job.seq
from {jobs} as job cross join {tags_of job}
where job.id {in_texts ?}
on conflict do nothing
