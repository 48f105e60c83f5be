-- Workers that were told to claim nothing say so.
alter table {workers} add column quiet boolean not null default false;

-- As before, and where the table was emptied: then nothing is special until it is declared.
create or replace function {enter}(out queues text[], out tasks text[], out tasked text[])
language plpgsql as $body$
begin
    perform pg_advisory_xact_lock_shared({lock_key}('all'));
    select known.queues, known.tasks, known.tasked into queues, tasks, tasked
    from {special} as known;
    if not found then
        queues := array[]::text[];
        tasks := array[]::text[];
        tasked := array[]::text[];
    end if;
end
$body$;

create or replace function {is_plain}(queue text, task text) returns boolean
language plpgsql as $body$
begin
    if pg_advisory_xact_lock_shared({lock_key}('all')) is null then
        return null;
    end if;
    return coalesce((
        select queue <> all(known.queues) and task <> all(known.tasks) from {special} as known
    ), true);
end
$body$;

-- One row, where the jobs were carried to another store.
create table {copied} (carried_to text not null, at_us bigint not null);
-- What workers have done since they started, as they tell it with each renewal.
alter table {workers} add column succeeded bigint not null default 0;
alter table {workers} add column failed bigint not null default 0;
alter table {workers} add column execution_us bigint not null default 0;

-- Held jobs by their limit, and those to be cancelled by their worker: see `leases.py`.
create index {=holds} on {jobs} (hold_us) where hold_us is not null;
create index {=cancelling} on {jobs} (worker) where cancel_requested and lane is not null;

-- Documents with versions: see `policies.records`. A name is kind, tenant and key.
create table {records} (
    name text collate "C" primary key,
    kind text collate "C" not null,
    version bigint not null,
    order_no bigint,
    expires_us bigint,
    counters text,                           -- JSON
    writers text,                            -- JSON
    document bytea not null
);
create index {=records_in_order} on {records} (kind, order_no, name) where order_no is not null;
create index {=records_expiring} on {records} (expires_us) where expires_us is not null;
-- The highest version of a record that is gone, so that none is given twice.
create table {removed_records} (only_row integer primary key, highest bigint not null);

-- Ready jobs by task, so that a claim need not walk past jobs of tasks its worker does not know.
create index {=ready} on {jobs} (queue, task, rank, place) where lane < 1;

-- What is kept with jobs under names, and the signals sent to them: see `stores/attachments.py`.
create table {attachments} (
    seq bigint not null,
    name text collate "C" not null,          -- "": the fence with which the job waits for a signal
    number integer not null,                 -- 0: a value; others: signals, in the order of coming
    value bytea not null,
    primary key (seq, name, number)
);

-- What users' transactions ask for, until it is admitted: see `stores/intake.py`. Those who append
-- need the right to insert here and to read `copied`, and no other.
create table {requests} (
    number bigint generated always as identity primary key,
    at_us bigint not null,
    request text not null                    -- JSON
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

-- What becomes of members of groups: see `JournalStore`.
create table {journal} (
    id bigint generated always as identity primary key,
    group_name text collate "C" not null,
    job text collate "C" not null,
    node text not null,
    status smallint not null,
    was smallint not null,
    items bigint not null,
    failed bigint not null
);
create index {=journal_of} on {journal} (group_name, id);
-- Here, so that no path can forget it, nor a worker of an older release. A member's result is kept as
-- long as its record. What was counted lies with the attachments. The topic is `journal`, shortened.
create function {journal_line}() returns trigger language plpgsql as $body$
declare
    member json := new.options::json -> 'member';
begin
    if member is null then
        return null;
    end if;
    insert into {journal} (group_name, job, node, status, was, items, failed)
    select
        member ->> 0, new.id, member ->> 1, new.status, old.status,
        coalesce(max(convert_from(value, 'UTF8')::bigint) filter (where number = -1), 0),
        coalesce(max(convert_from(value, 'UTF8')::bigint) filter (where number = -2), 0)
    from {attachments} where seq = new.seq and name = '' and number < 0;
    if new.finished_us is not null then
        update {jobs} set result_until_us = null, expires_us = record_until_us where id = new.id;
    end if;
    perform pg_notify({channel}, 'a553ee65b0bdcc15');
    return null;
end
$body$;
create trigger {=journal_line} after update of status on {jobs} for each row
when (
    new.options is not null and (new.status in (3, 5, 7)) <> (old.status in (3, 5, 7))
    and strpos(new.options, '"member":[') > 0
)
execute function {journal_line}();
