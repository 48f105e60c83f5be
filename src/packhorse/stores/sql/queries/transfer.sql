-- name: carry_history
-- The histories of some jobs, in order; the attempt that completed one is in its row.
select seq, attempt, status, started_us, finished_us, worker, will_retry, error
from {attempts}
where seq {in_numbers :seqs}
union all
select seq, attempts, status, started_us, finished_us, worker, {false}, null
from {jobs} where seq {in_numbers :seqs} and status = {status.completed}
order by 1, 2

-- name: carry_out
-- Jobs that wait or are dead, and finished members of groups that are there, with all that the store
-- knows of them, in order of submission.
select
    <columns>, rank, place, kept_rank, kept_place, ready_us, suspect, expires_us,
    order_line, line_no,
    exists (
        select 1 from {keys} as taken where taken.seq = job.seq and taken.kind = 'unique'
    ),
    exists (
        select 1 from {keys} as taken
        where taken.seq = job.seq and taken.kind = 'idempotency'
    ),
    (select stash.job from {stash} as stash where stash.seq = job.seq)
from {jobs} as job
where
    (
        status in (
            {status.pending}, {status.queued}, {status.failed}, {status.timeout}, {status.dead}
        )
        or status in ({status.completed}, {status.cancelled}) and exists (
            select 1 from {records} as head
            where head.name = {member job} and coalesce(head.expires_us > {number :now}, {true})
            {apart}
        )
    )
    and <condition>
order by seq
limit :limit

-- name: carry_in
-- Insert a job carried from another store, as it was there.
insert into {jobs} (<names>) values (<given>)

-- name: carry_passes
-- Raise a tenant's last pass to at least this one.
insert into {passes} (queue, priority, tenant, pass)
values (:queue, :priority, :tenant, :pass)
on conflict (queue, priority, tenant) do update
set pass = {greatest}({passes}.pass, excluded.pass)

-- name: copied
-- The store that the jobs of this store were carried to.
select carried_to, at_us from {copied}

-- name: copied_forget
-- Use this store again, wherever its jobs were carried to.
delete from {copied}

-- name: copied_keep
-- Keep that the jobs of this store were carried to another one.
insert into {copied} (carried_to, at_us) values (?, ?)

-- name: exchange_job
-- Replace a text in the result and the error of a job.
update {jobs} set
    result = replace(result, :old, :new),
    error = replace(error, :old, :new)
where id = :id

-- name: exchange_history
-- Replace a text in the errors of its attempts.
update {attempts} set error = replace(error, :old, :new)
where seq = (select seq from {jobs} where id = :id)
