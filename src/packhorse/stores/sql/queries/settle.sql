-- name: settle_one
-- Write one settlement that applies.
update {jobs}
set
    status = :status, lane = :lane, rank = :rank, place = :place,
    kept_rank = :kept_rank, kept_place = :kept_place, due_us = :due_us,
    ready_us = :ready_us, settled = :settled, suspect = :suspect, alone = {false},
    attempts = attempts + :attempts, failures = failures + :failures,
    crashes = crashes + :crashes, lone_crashes = lone_crashes + :lone_crashes,
    snoozes = snoozes + :snoozes, releases = releases + :releases,
    error = :shown_error, result = :result, dead_reason = :dead_reason,
    dead_letter = :dead_letter, finished_us = :finished_us, expires_us = :expires_us,
    record_until_us = :record_until_us, result_until_us = :result_until_us,
    updated_us = :now, hold_us = null, blocked_by = null,
    line = case when {number :finished_us} is null then line end,
    order_line = case
        when {number :finished_us} is null or :holds_line then order_line
    end
where seq = :seq

-- name: settle_rows
-- What must be known of jobs to settle them one by one; they are locked until that is done. The
-- worker is looked up, not joined: a row that another transaction held is read again after the wait
-- for it, and what was joined to it is not.
select
    job.id, job.seq, job.status, job.fence, job.settled, job.cancel_requested, job.deadline_us,
    job.queue, job.priority, job.rank, job.place, job.due_us, job.ready_us, job.suspect,
    job.attempts, job.started_us, job.worker, job.hold_us,
    (select expires_us from {workers} where worker = job.worker), queue.dead_letter,
    job.error, job.tenant, job.task, job.rate_key, job.created_us, job.extra, queue.settings
from {jobs} as job
left join {queues} as queue on queue.name = job.queue
where job.id {in_texts ?}
order by job.id
{lock job}

-- name: attempt_add
-- Add a line to the history.
insert into {attempts} (
    seq, attempt, status, started_us, finished_us, worker, will_retry, error
) values (:seq, :attempt, :attempt_status, :started_us, :now, :worker, :will_retry, :error)

-- name: attempt_keep
-- Add the completed attempt of a job that is redriven to its history.
insert into {attempts} (
    seq, attempt, status, started_us, finished_us, worker, will_retry, error
)
select seq, attempts, status, started_us, finished_us, worker, {false}, null
from {jobs} where seq = ?

-- name: attempts_trim
-- Keep the first and last 25 lines of a history that has grown longer.
delete from {attempts}
where seq = :seq and attempt > :kept and attempt <= :attempt - :kept

-- name: finish_waiting
-- End a job that no worker holds.
update {jobs} as job
set
    status = :status, lane = {number :lane},
    rank = case when {number :lane} = {lane.dead} then seq else rank end,
    kept_rank = null, kept_place = null, parked_us = null, finished_us = :now, updated_us = :now,
    expires_us = :expires_us, record_until_us = :record_until_us, result_until_us = null,
    dead_reason = :dead_reason, blocked_by = null, line = null,
    order_line = case
        when
            {number :lane} = {lane.dead}
            and exists (
                select 1 from {queues}
                where name = job.queue and {field settings on_dead} = 'hold'
            )
            then order_line
    end,
    dead_letter = case
        when {number :lane} = {lane.dead} then (select dead_letter from {queues} where name = job.queue)
    end
where seq = :seq

-- name: progress
-- Keep the newest progress of a job whose fence is current.
update {jobs} set progress = :progress, updated_us = :now
where id = :id and fence = :fence and status = {status.processing}
returning id

-- name: cancel_row
-- What must be known of a job to cancel it; it is locked until that is done. The worker is looked up
-- as in `settle_rows`: a job that was claimed meanwhile is not lost.
select
    job.tenant, job.seq, job.status, job.queue, queue.settings,
    job.worker, job.fence, job.alone, job.hold_us,
    (select expires_us from {workers} where worker = job.worker)
from {jobs} as job
left join {queues} as queue on queue.name = job.queue
where job.id = ?
{lock job}

-- name: stash_behind
-- Whether a job waits for the end of this one to be submitted.
select exists (select 1 from {stash} where seq = ?)

-- name: cancel_running
-- Flag a running job as to be cancelled; the flag wins over any later settlement.
update {jobs} set cancel_requested = {true}, updated_us = :now
where seq = :seq and cancel_requested = {false}

-- name: redrive
-- Make a finished or waiting job ready with fresh budgets; id, fence and history stay.
update {jobs}
set
    status = {status.queued},
    lane = case when suspect = {true} then {lane.suspect} else {lane.ready} end,
    rank = :rank, place = :place, kept_rank = null, kept_place = null,
    due_us = :now, ready_us = :now, updated_us = :now, cancel_requested = {false}, failures = 0,
    snoozes = 0, lone_crashes = 0, result = null, error = null, dead_reason = null,
    dead_letter = null, finished_us = null, expires_us = null, record_until_us = null,
    result_until_us = null,
    deadline_us = case when deadline_us > :now then deadline_us end
where seq = :seq

-- name: redrive_row
-- What a redrive has to know of a job.
select
    id, seq, status, priority, extra, {member job},
    queue, task, tenant, ordering_key, concurrency_key, rate_key
from {jobs} as job where id = ?

-- name: remove
-- Remove rows of jobs from a table.
delete from {<table>} where <column> {in_numbers ?}
