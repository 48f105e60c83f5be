-- name: attaching_row
-- Lock a job, and read what a change of its attachments has to know.
select seq, status, fence, tenant, queue from {jobs} as job where id = ? {lock job}

-- name: attached
-- The attachments of some jobs. Number 0 is a value, higher ones are signals. Rows without a name:
-- 0 is the fence with which a job waits for a signal, -1 and -2 are counts, lower ones deliveries.
select seq, name, number, value from {attachments} where seq {in_numbers ?}
order by seq, name, number

-- name: attached_size
-- How much is attached to a job, how many signals of all names and of one, and whether a delivery
-- is known.
select
    coalesce(sum(case when name <> '' then 1 else 0 end), 0),
    coalesce(sum(case when name <> '' then length(value) else 0 end), 0),
    coalesce(sum(case when number > 0 then 1 else 0 end), 0),
    coalesce(sum(case when number > 0 and name = :name then 1 else 0 end), 0),
    coalesce(min(number), 0),
    coalesce(max(case when number < -2 and value = :delivery then 1 else 0 end), 0)
from {attachments} where seq = :seq

-- name: attached_sizes
-- How much is attached to some jobs.
select seq, count(*), sum(length(value)) from {attachments}
where seq {in_numbers ?} and name <> '' group by seq

-- name: attached_touch
-- Note when something was sent to a job.
update {jobs} set updated_us = :now where seq = :seq

-- name: attached_waits
-- The fence with which a job waits for a signal.
select value from {attachments} where seq = ? and name = '' and number = 0

-- name: attached_due
-- Make a job due that waits for a signal.
update {jobs} set due_us = :now, rank = :now where seq = :seq

-- name: attached_forget
-- Remove all attachments of a job.
delete from {attachments} where seq = ?

-- name: attached_drop
-- Remove the attachments of a job under a name.
delete from {attachments} where seq = :seq and name = :name

-- name: attached_to
-- The job whose attachments are read.
select seq, tenant, status, fence from {jobs} where id = ?
