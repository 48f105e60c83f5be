-- name: attaching_row
-- What must be known of a job to change what is kept with it; it is locked until that is done.
select seq, status, fence, tenant, queue from {jobs} as job where id = ? {lock job}

-- name: attached
-- All that is kept with some jobs. Number 0 is a value, others are signals; without a name, the fence
-- with which a job was left to wait for a signal, and below -2 the numbers that senders gave signals.
select seq, name, number, value from {attachments} where seq {in_numbers ?}
order by seq, name, number

-- name: attached_size
-- How much is kept with a job, how many signals of all names and of one, and whether a sender's
-- number is known.
select
    coalesce(sum(case when name <> '' then 1 else 0 end), 0),
    coalesce(sum(case when name <> '' then length(value) else 0 end), 0),
    coalesce(sum(case when number > 0 then 1 else 0 end), 0),
    coalesce(sum(case when number > 0 and name = :name then 1 else 0 end), 0),
    coalesce(min(number), 0),
    coalesce(max(case when number < -2 and value = :delivery then 1 else 0 end), 0)
from {attachments} where seq = :seq

-- name: attached_sizes
-- How much is kept with some jobs.
select seq, count(*), sum(length(value)) from {attachments}
where seq {in_numbers ?} and name <> '' group by seq

-- name: attached_touch
-- Something was sent to a job.
update {jobs} set updated_us = :now where seq = :seq

-- name: attached_waits
-- The fence with which a job was left to wait for a signal.
select value from {attachments} where seq = ? and name = '' and number = 0

-- name: attached_due
-- A job that waits for a signal is due.
update {jobs} set due_us = :now, rank = :now where seq = :seq

-- name: attached_forget
-- A job starts with nothing attached.
delete from {attachments} where seq = ?

-- name: attached_drop
-- Forget what is attached to a job under a name.
delete from {attachments} where seq = :seq and name = :name

-- name: attached_to
-- The job that something may be kept with.
select seq, tenant, status, fence from {jobs} where id = ?
