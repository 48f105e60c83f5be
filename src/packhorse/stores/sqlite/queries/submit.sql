-- name: submit
-- Insert jobs; skip those whose id is known. The caller repeats the row of values.
insert into {jobs} (
    seq, id, task, queue, status, lane, rank, place, priority, due_us, created_us, updated_us,
    ready_us, timeout_us, deadline_us, tenant, trace_id, extra, payload
) values <rows>
on conflict (id) do nothing

-- name: submit_alike
-- Insert jobs that differ in their ids and payloads only, as `submit` does. The caller repeats the
-- row of number, id and payload.
insert into {jobs} (
    seq, id, task, queue, status, lane, rank, place, priority, due_us, created_us, updated_us,
    ready_us, timeout_us, tenant, trace_id, payload
)
select
    ? + own.column1, own.column2, ?, ?, ?, ?, ?, ? + own.column1, ?, ?, ?, ?, ?, ?, '', ?, own.column3
from (values <rows>) as own
where true
on conflict (id) do nothing

-- name: bodies_known
-- Whether all live workers look for large payloads beside the rows; older releases do not.
select not exists (select 1 from {workers} where schema < 3 and expires_us > ?)

-- name: payloads_cut
-- Empty the large payloads of jobs just copied here; `body_keep` stores them beside their rows. Not
-- while a worker lives whose release does not look for them there.
update {jobs} set payload = ''
where
    id in (select value from json_each(:ids)) and length(payload) > :size
    and not exists (select 1 from {workers} where schema < 3 and expires_us > :now)

-- name: body_keep
-- Store a large payload beside the row of its job, if it is empty there.
insert or replace into {bodies} (job_seq, body)
select seq, ? from {jobs} where id = ? and payload = ''

-- name: next_places
-- Take places above all numbers ever used; returns the last one taken.
update {sequence}
set value = max(value, coalesce((select max(seq) from {jobs}), 0)) + ?
returning value

-- name: intake_add
-- Insert one unconstrained job with a new id into the intake. If its queue or task has limits, or the
-- store was copied, its task becomes null and `or ignore` skips the row: then the general path runs.
-- Other nulls are made here, since the driver is slow to bind them: of a timeout of -1, a trace made
-- from the id, an empty extra. The id, the queue and the task are given once for each place.
insert or ignore into {intake} (
    id, created_us, payload, task, queue, priority, timeout_us, due_us, trace_id, extra
) values (
    ?, ?, ?,
    case
        when exists (
            select 1 from {queues} where name = ? and (closed or tenanted or special)
        )
        or exists (select 1 from {queues} where name = '' and special)
        or exists (select 1 from {queues} where dead_letter = ?)
        or exists (select 1 from {tasks} where name = ?)
        or exists (select 1 from {copied})
            then null
        else ?
    end,
    ?, ?, nullif(?, -1), ?, nullif(?, replace(?, '-', '')), nullif(?, '')
)

-- name: intake_any
-- Whether the intake has jobs, or requests of users' transactions.
select 1 where exists (select 1 from {intake}) or exists (select 1 from {requests})

-- name: intake_empty
-- Remove all jobs from the intake.
delete from {intake}

-- name: intake_job
-- One job of the intake, with the columns it will have in its row.
select <columns>
from (
    select
        (select coalesce(max(seq), 0) from {jobs}) + job.number as seq,
        job.id, job.task, job.queue,
        case when job.due_us <= job.created_us then {status.queued} else {status.pending} end as status,
        job.priority, '' as tenant,
        0 as attempts, 0 as failures, 0 as crashes, 0 as lone_crashes, 0 as snoozes, 0 as releases,
        0 as fence, job.created_us, job.created_us as updated_us, job.due_us, job.payload,
        job.trace_id, null as worker, job.timeout_us, null as deadline_us, null as started_us,
        null as finished_us, null as dead_reason, null as dead_letter, null as error,
        null as progress, null as result, null as result_until_us, job.extra,
        0 as cancel_requested, null as parked_us, null as ordering_key, null as concurrency_key,
        null as rate_key, 1 as weight
    from {intake} as job
    where job.id = ?
) as job

-- name: intake_last
-- The highest number used as sequence or place.
select {last_number}

-- name: intake_waiting
-- Requests of committed transactions, in order.
select at_us, request from {requests} order by number

-- name: intake_admitted
-- Remove the admitted requests.
delete from {requests}

-- name: intake_append
-- Add requests of a user's transaction, unless the store was copied to another one.
insert into {requests} (at_us, request)
select ?, one.value
from json_each(?) as one
where not exists (select 1 from {copied})
order by one.key

-- name: intake_append_one
-- Add one request; see `intake_append`.
insert into {requests} (at_us, request)
select ?, ?
where not exists (select 1 from {copied})

-- name: intake_probe
-- The file of a connection's main database, and whether it has the table of requests.
select
    (select file from pragma_database_list where name = 'main'),
    exists (select 1 from pragma_table_info('{requests}', 'main'))

-- name: intake_unload
-- Insert every job of the intake, with numbers above the last one. That is read before, since an
-- insert that reads its own table uses a temporary one. A known id was submitted again after a commit
-- in doubt, and is skipped.
insert into {jobs} (
    seq, id, task, queue, status, lane, rank, place, priority, due_us, created_us, updated_us,
    ready_us, timeout_us, tenant, trace_id, extra, payload
)
select
    ? + job.number,
    job.id,
    job.task,
    job.queue,
    case when job.due_us <= job.created_us then {status.queued} else {status.pending} end,
    case when job.due_us <= job.created_us then {lane.ready} else {lane.waiting} end,
    case when job.due_us <= job.created_us then job.priority * ? else job.due_us end,
    ? + job.number,
    job.priority,
    job.due_us,
    job.created_us,
    job.created_us,
    job.created_us,
    job.timeout_us,
    '',
    job.trace_id,
    job.extra,
    job.payload
from {intake} as job
where true
order by job.number
on conflict (id) do nothing

-- name: submit_keys
-- Keep the keys of a job just inserted, and its number in its line of order.
update {jobs}
set
    ordering_key = :ordering_key, concurrency_key = :concurrency_key, rate_key = :rate_key,
    weight = :weight, line = :line, order_line = :order_line,
    line_no = case when order_line is null then :seq else line_no end
where seq = :seq and id = :id
