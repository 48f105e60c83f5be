-- name: key_holder
-- The last job that took a key.
select seq, id, status, created_us, queue, priority, tenant, suspect, extra, finished_us
from {jobs} as job
where seq = (select seq from {keys} where kind = ? and tenant = ? and task = ? and key = ?)
{lock job}

-- name: key_take
-- Make a job the holder of a key.
insert into {keys} (kind, tenant, task, key, seq)
select ?, ?, ?, ?, seq from {jobs} where id = ?
on conflict (kind, tenant, task, key) do update set seq = excluded.seq

-- name: keys_taken
-- The job that last took each of these keys, if one did; one look-up a key, whatever the planner expects.
select (select seq from {keys} where kind = ? and tenant = ? and task = ? and key = asked.value)
from {texts ? as asked}

-- name: takers_lock
-- Lock jobs in order of id, as settlements do; an expression, so that no index is read for the order.
select id from {jobs} as job where seq {in_numbers ?} order by id || ''
{lock job}

-- name: payload_replace
-- Give a waiting holder the payload of a new job.
update {jobs} set
    payload = :payload, updated_us = :now,
    bytes = case when bytes is not null then {number :bytes} end
where seq = :seq

-- name: stash_forget
-- Drop the job stashed behind a holder.
delete from {stash} where seq = ?

-- name: stash_keep
-- Stash a job behind the running holder of its key; the newest wins.
insert into {stash} (seq, job) values (?, ?)
on conflict (seq) do update set job = excluded.job

-- name: stash_outdated
-- Drop the job stashed behind the last holder of a unique key.
delete from {stash}
where seq = (
    select seq from {keys}
    where kind = 'unique' and tenant = ? and task = ? and key = ?
)

-- name: stash_take
-- Take the jobs stashed behind these, if these still hold their keys.
delete from {stash} as stashed
where
    seq {in_numbers ?}
    and exists (
        select 1 from {keys} as taken
        where taken.seq = stashed.seq and taken.kind = 'unique'
        {apart}
    )
returning seq, job

-- name: reschedule
-- Reschedule a waiting job, which loses its place.
update {jobs}
set
    status = :status, lane = :lane, rank = :rank, place = :place, due_us = :due_us,
    kept_rank = null, kept_place = null, parked_us = null, blocked_by = null,
    ready_us = case when :lane = {lane.waiting} then ready_us else :now end, updated_us = :now
where seq = :seq
