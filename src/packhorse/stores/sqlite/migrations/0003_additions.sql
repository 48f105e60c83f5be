-- Workers that were told to claim nothing say so.
alter table packhorse_workers add column quiet integer not null default 0;

-- One row, where the jobs were carried to another store.
create table packhorse_copied (carried_to text not null, at_us integer not null);

-- Ready jobs by task, so that a claim never walks past jobs of tasks its worker does not know.
create index packhorse_ready on packhorse_jobs (queue, task, rank, place) where lane = 0;

-- What workers have done since they started, as they tell it with each renewal.
alter table packhorse_workers add column succeeded integer not null default 0;
alter table packhorse_workers add column failed integer not null default 0;
alter table packhorse_workers add column execution_us integer not null default 0;

-- Documents with versions: see `policies.records`. A name is kind, tenant and key.
create table packhorse_records (
    name text primary key,
    kind text not null,
    version integer not null,
    order_no integer,
    expires_us integer,
    counters text,                           -- JSON
    writers text,                            -- JSON
    document blob not null
) without rowid;
create index packhorse_records_in_order on packhorse_records (kind, order_no, name)
where order_no is not null;
create index packhorse_records_expiring on packhorse_records (expires_us)
where expires_us is not null;
-- The highest version of a record that is gone, so that none is given twice.
create table packhorse_removed_records (only_row integer primary key, highest integer not null);

-- What is kept with jobs under names, and the signals sent to them: see `stores/attachments.py`.
create table packhorse_attachments (
    seq integer not null,
    name text not null,                      -- "": the fence with which the job waits for a signal
    number integer not null,                 -- 0: a value; others: signals, in the order of coming
    value blob not null,
    primary key (seq, name, number)
) without rowid;

-- Large payloads, beside the rows that claim and settle write again. In such a row the payload is empty.
create table packhorse_bodies (job_seq integer primary key, body text not null);
-- Workers of releases that know nothing of bodies leave it at 2.
alter table packhorse_workers add column schema integer not null default 2;
-- While one of them lives, payloads stay in the rows. First the row is made small: its pages are then
-- free for the body.
create trigger packhorse_body_in after insert on packhorse_jobs
when length(new.payload) > 2000 and not exists (
    select 1 from packhorse_workers where schema < 3 and expires_us > new.created_us
)
begin
    update packhorse_jobs set payload = '' where seq = new.seq;
    insert or replace into packhorse_bodies (job_seq, body) values (new.seq, new.payload);
end;
-- One that was away, and comes back, is given no job that it cannot read.
create trigger packhorse_body_out after update of lane on packhorse_jobs
when new.lane = 4 and new.payload = '' and exists (
    select 1 from packhorse_workers where worker = new.worker and schema < 3
)
begin select raise(abort, 'large payloads need a newer release: upgrade Packhorse here'); end;

-- What users' transactions ask for, until it is admitted: see `stores/intake.py`. A table of its own, so that
-- processes of older releases leave it alone.
create table packhorse_requests (
    number integer primary key,              -- from 1, as it empties
    at_us integer not null,
    request text not null                    -- JSON
);

-- What becomes of members of groups: see `JournalStore`. No id comes again.
create table packhorse_journal (
    id integer primary key autoincrement,
    group_name text not null,
    job text not null,
    node text not null,
    status integer not null,
    was integer not null,
    items integer not null,
    failed integer not null
);
create index packhorse_journal_of on packhorse_journal (group_name, id);
-- Here, so that no path can forget it, nor a worker of an older release. A member's result is kept as
-- long as its record. What was counted lies with the attachments.
create trigger packhorse_journal_line after update of status on packhorse_jobs
when
    new.extra is not null and instr(new.extra, '"member":[') > 0
    -- For a list of more than two SQLite would build a table at every row.
    and (new.status = 3 or new.status = 5 or new.status = 7)
    <> (old.status = 3 or old.status = 5 or old.status = 7)
begin
    insert into packhorse_journal (group_name, job, node, status, was, items, failed)
    select
        json_extract(new.extra, '$.options.member[0]'), new.id,
        json_extract(new.extra, '$.options.member[1]'), new.status, old.status,
        coalesce((
            select cast(cast(value as text) as integer) from packhorse_attachments
            where seq = new.seq and name = '' and number = -1
        ), 0),
        coalesce((
            select cast(cast(value as text) as integer) from packhorse_attachments
            where seq = new.seq and name = '' and number = -2
        ), 0)
    where json_extract(new.extra, '$.options.member[0]') is not null;
    update packhorse_jobs set result_until_us = null, expires_us = record_until_us
    where
        seq = new.seq and finished_us is not null
        and json_extract(new.extra, '$.options.member[0]') is not null;
end;
