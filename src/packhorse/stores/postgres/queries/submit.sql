-- name: submit_alike
-- Add jobs that are ready at once, and that differ in id, payload and trace only. Add none if the queue or the
-- task is constrained. Lists taken apart beside `select` are not stored in between, as they are behind `from`.
insert into {jobs} (
    seq, rank, place, lane, id, queue, task, due_us, created_us, updated_us, status, priority,
    tenant, payload, ready_us, trace_id, timeout_us, options, upstream_request_id, created_by
)
select
    seq, :rank, seq, {lane.ready}, id, :queue, :task, now_us, now_us, now_us, {status.queued},
    :priority, '',
    payload, now_us, trace_id, :timeout_us::bigint, :options::text, :upstream_request_id::text,
    :created_by::text
from (
    select
        nextval('{numbers}') as seq, unnest(string_to_array(:ids, e'\x1e')) as id,
        unnest(string_to_array(:payloads, e'\x1e')) as payload,
        unnest(:traces::text[]) as trace_id, {now} as now_us
    where (select {is_plain}(:queue::text, :task::text))
) as new

-- name: submit_fast
-- As `submit_alike`, for jobs with a delay, a deadline or tags. Say whether they were added, and are ready.
with moment as materialized (
    select now_us, coalesce(:scheduled_us::bigint, now_us + :delay_us) as due_us
    from (select {now} as now_us) as clock
),
checked as materialized (select {is_plain}(:queue::text, :task::text) as unconstrained),
numbered as (
    select nextval('{numbers}') as seq, new.id, new.payload, new.trace_id
    from checked, unnest(
        string_to_array(:ids, e'\x1e'), string_to_array(:payloads, e'\x1e'),
        :traces::text[]
    ) as new (id, payload, trace_id)
    where checked.unconstrained
),
added as (
    insert into {jobs} (
        seq, id, task, queue, status, lane, rank, place, priority, due_us, created_us, updated_us,
        ready_us, timeout_us, deadline_us, tenant, trace_id, options, upstream_request_id,
        created_by, extra, payload
    )
    select
        new.seq, new.id, :task, :queue,
        case when due_us <= now_us then {status.queued} else {status.pending} end,
        case when due_us <= now_us then {lane.ready} else {lane.waiting} end,
        case when due_us <= now_us then :rank else due_us end,
        new.seq, :priority, due_us, now_us, now_us, now_us, :timeout_us::bigint,
        :deadline_us::bigint, '', new.trace_id, :options::text,
        :upstream_request_id::text, :created_by::text, :extra::text, new.payload
    from numbered as new, moment
    returning seq
),
dated as (
    insert into {deadlines} (deadline_us, seq)
    select :deadline_us::bigint, seq from added where :deadline_us::bigint is not null
),
tagged as (
    insert into {tags} (tag, seq)
    select tag, seq from added, unnest(:tags::text[]) as tag
)
select checked.unconstrained, moment.due_us <= moment.now_us from checked, moment

-- name: submit_rows
-- Add jobs with the places they were given; one whose id is known is left as it is.
insert into {jobs} (
    seq, id, task, queue, status, lane, rank, place, priority, due_us, created_us, updated_us,
    ready_us, timeout_us, deadline_us, tenant, trace_id, options, upstream_request_id, created_by,
    extra, keyed, payload
)
select
    new.seq, new.id, new.task, new.queue, new.status, new.lane, new.rank, new.seq, new.priority,
    new.due_us, :now, :now, :now, new.timeout_us, new.deadline_us, new.tenant,
    new.trace_id, new.options, new.upstream_request_id, new.created_by, new.extra, new.keyed,
    new.payload
from unnest(
    :seq::bigint[], :id::text[], :task::text[], :queue::text[], :status::bigint[],
    :lane::bigint[], :rank::bigint[], :priority::bigint[], :due_us::bigint[],
    :timeout_us::bigint[], :deadline_us::bigint[], :tenant::text[],
    :trace_id::text[], :options::text[], :upstream_request_id::text[],
    :created_by::text[], :extra::text[], :keyed::boolean[], :payload::text[]
) as new (
    seq, id, task, queue, status, lane, rank, priority, due_us, timeout_us, deadline_us, tenant,
    trace_id, options, upstream_request_id, created_by, extra, keyed, payload
)
on conflict (id) do nothing
returning seq

-- name: submit_keys
-- Keep the keys of jobs just inserted, and their numbers in their lines of order. An expression, so that no
-- plan reads all ids in their order to join them.
with new as materialized (select * from json_populate_recordset(null::{jobs}, ?::json))
update {jobs} as job
set
    ordering_key = new.ordering_key, concurrency_key = new.concurrency_key,
    rate_key = new.rate_key, weight = new.weight, line = new.line, order_line = new.order_line,
    line_no = case when job.order_line is null then new.seq else job.line_no end
from new
where job.seq = any(array(select seq from new)) and job.seq = new.seq and job.id || '' = new.id

-- name: numbers
-- Take some numbers behind all that were ever given out.
select nextval('{numbers}') from generate_series(1, ?)

-- name: constrained
-- The constrained queues and tasks.
select queues, tasks, tasked from {special}

-- name: constrained_keep
-- Store which queues and tasks are constrained. Leave the row alone if that has not changed; insert it if it
-- was removed. What a release before this one writes says of no queue that it is ungated or quiet.
with found as materialized (
    select
        array(
            select name from {queues}
            where special or closed or tenanted or lined
            union
            select dead_letter from {queues} where dead_letter is not null
            union
            select queue from {shut} where queue is not null
            union
            select 'paused ' || name from {queues} where paused -- for claims that did not see it
            union
            select 'ungated ' || queue.name from {queues} as queue -- no gate but its line blocks a job
            where
                (special or closed or tenanted or lined) and not (tasked or limited)
                and coalesce({field settings rate}, {field settings tenant_rate}) is null
                and not exists (select 1 from {shut} as gate where gate.queue = queue.name)
            union
            select 'quiet ' || name from {queues} -- the end of a job releases no other
            where (special or closed or tenanted) and not (tasked or limited or lined)
            union
            select '' from {copied} -- any queue
            order by 1
        ) as queues,
        array(
            select name from {tasks}
            union
            select task from {shut} where task is not null
            order by 1
        ) as tasks,
        array(select name from {queues} where tasked order by 1) as tasked
),
changed as (
    update {special} as known
    set queues = found.queues, tasks = found.tasks, tasked = found.tasked
    from found
    where
        known.queues <> found.queues or known.tasks <> found.tasks
        or known.tasked <> found.tasked
)
insert into {special} (queues, tasks, tasked)
select queues, tasks, tasked from found where not exists (select 1 from {special})

-- name: queues_of
-- The queues of jobs, and whether a job waits for one of them to end to be submitted.
select
    array(select distinct queue from {jobs} where id = any(:ids::text[])),
    exists (
        select 1 from {stash}
        where seq = any(array(select seq from {jobs} where id = any(:ids::text[])))
    )

-- name: lines_begin
-- Queues with an unfinished job of a task that has limits now: gates may hold such jobs back.
insert into {queues} (name, lined, tasked)
select distinct queue, true, true from {jobs}
where lane is not null and lane <> {lane.dead} and task = ?
on conflict (name) do update set lined = true, tasked = true

-- name: queue_lined
-- Queues have jobs that gates may hold back.
insert into {queues} as known (name, lined, tasked)
select asked.name, true, :tasked from unnest(:queues::text[]) as asked (name)
on conflict (name) do update set lined = true, tasked = known.tasked or excluded.tasked

-- name: tasked_ready
-- Queues with ready jobs that may wait for one of these tasks, if one of them has limits.
select queue from {special} as known cross join lateral unnest(known.tasked) as tasked (queue)
where
    known.tasks && ?::text[]
    and exists (
        select 1 from {jobs} as job
        where job.lane = {lane.ready} and job.queue = tasked.queue
        offset 0
    )

-- name: intake_any
-- Whether users' transactions ask for something.
select 1::bigint from {requests} limit 1

-- name: intake_alone
-- Whether no other process admits now; if so, none does before this transaction ends.
select pg_try_advisory_xact_lock({lock_key}('intake'))

-- name: intake_waiting
-- The first of what committed transactions ask for.
select number, at_us, request from {requests} order by number limit ?

-- name: intake_remove
-- Take out what was done.
delete from {requests} where number {in_numbers ?}

-- name: intake_append
-- Add what a user's transaction asks for, unless the store was copied to another one.
insert into {requests} (at_us, request)
select {now}, one.value::text
from json_array_elements(cast(? as json)) as one
where not exists (select 1 from {copied})

-- name: intake_append_one
-- As `intake_append`, for one request.
insert into {requests} (at_us, request)
select {now}, cast(? as text)
where not exists (select 1 from {copied})

-- name: intake_probe
-- Which intake a connection would write to: table, database, server, and whether it may.
select
    cast(cast(found.name as oid) as bigint),
    (select cast(oid as bigint) from pg_database where datname = current_database()),
    cast(extract(epoch from pg_postmaster_start_time()) * 1000000 as bigint),
    has_table_privilege(found.name, 'insert')
from (select to_regclass('{requests}') as name) as found
