-- name: settle_completed
-- Complete the jobs of <done> that are processing with this fence and not to be cancelled. <done> is
-- one JSON object of results by id, since reading arrays would cost as much as the update; or one job
-- whose result is large, since SQLite copies JSON several times.
update {jobs}
set
    status = {status.completed}, lane = null,
    settled = {jobs}.fence * {mark.kinds} + {mark.completed}, suspect = 0, alone = 0,
    line = null, order_line = null, attempts = attempts + 1, result = done.value, error = null,
    finished_us = :now, updated_us = :now, hold_us = null,
    expires_us = :now + min(coalesce(:keep_us, :results_us), coalesce(:results_us, :keep_us)),
    record_until_us = :now + :keep_us, result_until_us = :now + :results_us
from <done> as done
where
    {jobs}.id = done.key and {jobs}.fence = :fence
    and {jobs}.status = {status.processing} and {jobs}.cancel_requested = 0
    and {jobs}.seq not in (select seq from {keys})

-- name: aftermath
-- Jobs whose attempt or waiting is over: whether they have ended, and whether they leave their line.
select
    job.seq, job.finished_us is not null, job.finished_us is not null and job.order_line is null,
    queue.settings, job.queue, job.task, job.tenant, job.ordering_key, job.concurrency_key,
    job.rate_key
from json_each(:values) as asked
join {jobs} as job on job.<column> = asked.value
left join {queues} as queue on queue.name = job.queue
order by asked.key

-- name: aftermath_needed
-- Whether anything waits for attempts to end: jobs blocked by their lines of order or by gates,
-- stashed jobs, workers or producers that wait for room, callers that wait for a job.
select
    exists (select 1 from {jobs} where lane = {lane.blocked}),
    exists (select 1 from {jobs} where blocked_by is not null),
    exists (select 1 from {stash}),
    exists (select 1 from {queues} where limited = 1),
    exists (select 1 from {interests})

-- name: await_finish
-- Note that a caller waits for the end of a job that has not ended.
insert into {interests} (seq)
select seq from {jobs} where id = ? and finished_us is null
on conflict do nothing

-- name: interests_ended
-- Take the finished jobs that callers wait for.
delete from {interests}
where seq in (
    select interest.seq from {interests} as interest
    left join {jobs} as job on job.seq = interest.seq
    where job.seq is null or job.finished_us is not null
)
returning (select id from {jobs} where seq = {interests}.seq)

-- name: attaching_held
-- Those of these jobs that are processing with these fences: number, and how much is attached. As
-- one JSON document, since another thread could get its turn between two rows.
select json_group_array(json_array(
    job.id, job.seq, (select count(*) from {attachments} as kept where kept.seq = job.seq)
))
from json_each(?) as asked
join {jobs} as job on job.id = asked.key
where job.status = {status.processing} and job.fence = asked.value

-- name: attach_rows
-- Attach values to jobs.
insert into {attachments} (seq, name, number, value) values <kept>
on conflict (seq, name, number) do update set value = excluded.value

-- name: attached_mark
-- Mark jobs that have attachments and no mark yet, for the next claim.
update {jobs} as job
set extra = json_set(coalesce(extra, '{}'), '$.options.attached', json('true'))
where
    seq in (select value from json_each(?)) and not instr(coalesce(extra, ''), '"attached":')
    and exists (select 1 from {attachments} as kept where kept.seq = job.seq and kept.name <> '')
