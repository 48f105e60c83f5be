-- name: submit
-- Add jobs; one whose id is known is left as it is. The runner repeats the row of values.
insert into {jobs} (
    seq, id, task, queue, status, lane, rank, place, priority, due_us, created_us, updated_us,
    ready_us, timeout_us, deadline_us, tenant, trace_id, extra, payload
) values <rows>
on conflict (id) do nothing

-- name: submit_deadlines
-- Remember the deadlines of jobs just added.
insert into {deadlines} (deadline_us, seq)
select deadline_us, seq from {jobs}
where id in (select value from json_each(?)) and deadline_us is not null
on conflict do nothing

-- name: submit_tags
-- Index the tags of jobs just added.
insert into {tags} (tag, seq)
select distinct tag.value, job.seq
from {jobs} as job, json_each(job.extra, '$.tags') as tag
where job.id in (select value from json_each(?))
on conflict do nothing

-- name: payloads_cut
-- Empty the payloads of large jobs just added, which `body_keep` puts beside their rows. They stay while a
-- worker lives whose release does not read them there.
update {jobs} set payload = ''
where
    id in (select value from json_each(:ids)) and length(payload) > :size
    and not exists (select 1 from {workers} where schema < 3 and expires_us > :now)

-- name: body_keep
-- Keep a large payload beside the row of its job, if it was cut there.
insert or replace into {bodies} (job_seq, body)
select seq, ? from {jobs} where id = ? and payload = ''

-- name: queue_rows
-- Queues as a submit sees them, and the last number given out as sequence or place.
select
    asked.value,
    queue.settings,
    coalesce(queue.closed, 0) or exists (select 1 from {copied}),
    coalesce(queue.tenanted, 0),
    exists (select 1 from {queues} as other where other.dead_letter = asked.value),
    max(
        coalesce((select max(seq) from {jobs}), 0),
        (select value from {sequence})
    ),
    exists (select 1 from {tasks}),
    (select settings from {queues} where name = '') -- of the store itself
from json_each(?) as asked
left join {queues} as queue on queue.name = asked.value

-- name: next_places
-- Take some places behind all numbers ever given out; answers the last one taken.
update {sequence}
set value = max(value, coalesce((select max(seq) from {jobs}), 0)) + ?
returning value

-- name: intake_add
-- Put one unconstrained job down whose id is new. If its queue or its task has limits, or the
-- store was copied, its task is null, which is ignored: then no row was added, and the general way
-- tells why. Other nulls are made here, since the driver takes long to hand one over: of a timeout
-- of -1, a trace made from the id, an empty extra.
insert or ignore into {intake} (
    id, created_us, payload, task, queue, priority, timeout_us, due_us, trace_id, extra
) values (
    ?1, ?2, ?3,
    case
        when exists (
            select 1 from {queues} where name = ?5 and (closed or tenanted or special)
        )
        or exists (select 1 from {queues} where name = '' and special)
        or exists (select 1 from {queues} where dead_letter = ?5)
        or exists (select 1 from {tasks} where name = ?4)
        or exists (select 1 from {copied})
            then null
        else ?4
    end,
    ?5, ?6, nullif(?7, -1), ?8, nullif(?9, replace(?1, '-', '')), nullif(?10, '')
)

-- name: intake_any
-- Whether jobs stand in the intake, or users' transactions ask for something.
select 1 where exists (select 1 from {intake}) or exists (select 1 from {requests})

-- name: intake_empty
-- Once they have their places.
delete from {intake}

-- name: intake_job
-- One job of the intake, as it will stand among the others.
select <columns>
from (
    select
        (select coalesce(max(seq), 0) from {jobs}) + job.number as seq,
        job.id, job.task, job.queue,
        case when job.due_us <= job.created_us then ?2 else ?3 end as status,
        job.priority, '' as tenant,
        0 as attempts, 0 as failures, 0 as crashes, 0 as lone_crashes, 0 as snoozes, 0 as releases,
        0 as fence, job.created_us, job.created_us as updated_us, job.due_us, job.payload,
        job.trace_id, null as worker, job.timeout_us, null as deadline_us, null as started_us,
        null as finished_us, null as dead_reason, null as dead_letter, null as error,
        null as progress, null as result, null as result_until_us, job.extra,
        0 as cancel_requested, null as parked_us, null as ordering_key, null as concurrency_key,
        null as rate_key, 1 as weight
    from {intake} as job
    where job.id = ?1
) as job

-- name: intake_last
-- The last number given out as sequence or place.
select
    max(
        coalesce((select max(seq) from {jobs}), 0),
        (select value from {sequence})
    )

-- name: intake_waiting
-- What committed transactions ask for, in order.
select at_us, request from {requests} order by number

-- name: intake_admitted
-- Once it was done.
delete from {requests}

-- name: intake_append
-- Add what a user's transaction asks for, unless the store was copied to another one.
insert into {requests} (at_us, request)
select ?, one.value
from json_each(?) as one
where not exists (select 1 from {copied})
order by one.key

-- name: intake_append_one
-- As `intake_append`, for one request.
insert into {requests} (at_us, request)
select ?, ?
where not exists (select 1 from {copied})

-- name: intake_probe
-- The file that a connection has as its main database, and whether the intake there is ready.
select
    (select file from pragma_database_list where name = 'main'),
    exists (select 1 from pragma_table_info('{requests}', 'main'))

-- name: intake_unload
-- Give every job of the intake its number and its place, behind the last one: that is asked for
-- before, since what reads the table it adds to goes through a temporary one. Their ids were new;
-- one that is there all the same was put down again after a commit in doubt.
insert into {jobs} (
    seq, id, task, queue, status, lane, rank, place, priority, due_us, created_us, updated_us,
    ready_us, timeout_us, tenant, trace_id, extra, payload
)
select
    ?6 + job.number,
    job.id,
    job.task,
    job.queue,
    case when job.due_us <= job.created_us then ?1 else ?2 end,
    case when job.due_us <= job.created_us then ?3 else ?4 end,
    case when job.due_us <= job.created_us then job.priority * ?5 else job.due_us end,
    ?6 + job.number,
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
