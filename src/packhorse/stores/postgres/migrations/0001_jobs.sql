-- Jobs, their history and tags, the workers that hold them, the queues they wait in.
--
-- A job stands in one lane, and one index serves them all (lanes):
--   0 ready      rank, place: the order of claiming   queued
--   1 suspect    the same; was lost with its worker, runs alone
--   2 parked     the same; no live worker knows its task
--   3 waiting    rank = due_us, place = seq           pending, failed, timeout
--   4 held       as when it was ready                 processing
--   5 dead       rank = seq                           dead letters
--   6 held back  as when it was ready; blocked_by names the gate that is closed
--   null         completed, cancelled
-- status: 0 pending 1 queued 2 processing 3 completed 4 failed 5 cancelled 6 timeout 7 dead
-- Text that is compared has collation "C": the same order everywhere, and the fastest.

create sequence {numbers};                   -- of jobs and of places in the order of claiming

create table {jobs} (
    seq bigint not null,                     -- first what is indexed: to find it costs less there
    rank bigint not null,
    place bigint not null,
    weight integer not null default 1,
    lane smallint,
    id text collate "C" primary key with (fillfactor = 40),  -- rows are written three times
    queue text collate "C" not null,
    task text collate "C" not null,
    expires_us bigint,                       -- when upkeep next takes something away
    line text collate "C",                   -- jobs that share all their gates, while unfinished
    order_line text collate "C",             -- its line of order, while it stands in it
    line_no bigint,                          -- its number in its line of order
    blocked_by text collate "C",
    fence bigint not null default 0,         -- rises with every claim, never falls
    settled bigint not null default 0,       -- fence * 16 + kind of the owner's last settlement
    due_us bigint not null,
    created_us bigint not null,
    updated_us bigint not null,
    attempts integer not null default 0,
    failures integer not null default 0,
    crashes integer not null default 0,
    lone_crashes integer not null default 0,
    snoozes integer not null default 0,
    releases integer not null default 0,
    status smallint not null,
    priority smallint not null,
    suspect boolean not null default false,
    alone boolean not null default false,    -- the running attempt runs alone
    cancel_requested boolean not null default false,
    awaited boolean not null default false,  -- a caller waits for its end
    keyed boolean not null default false,    -- it wants a unique or an idempotency key
    tenant text collate "C" not null,
    payload text not null,
    ready_us bigint,
    trace_id text,                           -- null: made from the id
    timeout_us bigint,
    deadline_us bigint,
    kept_rank bigint,                        -- of a rescued job that waits for its turn
    kept_place bigint,
    started_us bigint,
    hold_us bigint,                          -- until when the claim may be held
    finished_us bigint,
    record_until_us bigint,
    result_until_us bigint,
    parked_us bigint,
    worker text collate "C",                 -- the holder, or the last one
    result text,                             -- JSON
    error text,                              -- JSON
    progress text,                           -- JSON
    dead_reason text,
    dead_letter text,
    upstream_request_id text,
    created_by text,
    options text,                            -- JSON
    extra text,                              -- JSON: tags and the rules of its keys
    ordering_key text collate "C",
    concurrency_key text collate "C",
    rate_key text collate "C"
) with (
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0.05
);
create index {=seqs} on {jobs} (seq) with (fillfactor = 40);
create index {=lanes} on {jobs} (lane, queue, rank, place) where lane is not null;
create index {=finished} on {jobs} (expires_us) where expires_us is not null;
create index {=lines} on {jobs} (line, lane, rank, place) where line is not null;
create index {=order} on {jobs} (order_line, line_no) where order_line is not null;
create index {=blocked} on {jobs} (blocked_by, queue, task, rank, place) where blocked_by is not null;
create index {=heavy} on {jobs} (blocked_by, queue, rank, place)
where blocked_by is not null and weight > 1;

-- Kept apart, so that jobs without them pay nothing.
create table {deadlines} (deadline_us bigint, seq bigint, primary key (deadline_us, seq));
create table {tags} (
    tag text collate "C" not null,
    seq bigint not null,
    primary key (tag, seq)
);
create index {=tags_of} on {tags} (seq);

-- Every attempt that ended otherwise than well; the good end is in the job itself.
create table {attempts} (
    seq bigint not null,
    attempt integer not null,
    status smallint not null,
    started_us bigint not null,
    finished_us bigint not null,
    worker text not null,
    will_retry boolean not null,
    error text,
    primary key (seq, attempt)
);

create table {workers} (
    worker text collate "C" primary key,
    lease_us bigint not null,
    expires_us bigint not null,
    started_us bigint not null,
    renewed_us bigint not null,
    host text not null,
    pid bigint not null,
    version text not null,
    concurrency bigint not null,
    running bigint not null,
    queues text[] not null,
    tasks text[] not null
) with (fillfactor = 50);

create table {queues} (
    name text collate "C" primary key,
    priority integer not null default 0,     -- these two as they hold
    dead_letter text collate "C",
    paused boolean not null default false,
    closed boolean not null default false,
    limited boolean not null default false,  -- workers or producers may wait for its jobs to end
    tenanted boolean not null default false, -- a job with a tenant was submitted: passes are dealt
    lined boolean not null default false,    -- a job that gates may hold back was submitted
    tasked boolean not null default false,   -- one of a task with limits of its own
    special boolean not null default false,  -- its settings say more than plain queues have
    declared text,                           -- JSON; null: never declared
    overridden text,                         -- JSON; an operator's, which holds instead
    settings text                            -- JSON; those that hold
);

-- Limits, fairness and uniqueness. A gate is written as its kind and name, joined by U+001F.
create table {tasks} (name text collate "C" primary key, settings text not null);
create table {shut} (
    gate text collate "C" primary key,
    queue text collate "C",                  -- of a pause; null: of a task's rate
    task text collate "C",                   -- of a rate; null: of a pause
    until_us bigint                          -- null: until it is opened by hand
);
create table {reopens} (                     -- gates that hold jobs back and open by time
    gate text collate "C" primary key,
    at_us bigint not null,
    since_us bigint not null                 -- when that was written
);
create table {rates} (gate text collate "C" primary key, log text not null);
create table {passes} (
    queue text collate "C" not null,
    priority integer not null,
    tenant text collate "C" not null,
    pass bigint not null,
    primary key (queue, priority, tenant)
);
create table {keys} (
    kind text collate "C" not null,          -- unique, idempotency
    tenant text collate "C" not null,
    task text collate "C" not null,
    key text collate "C" not null,
    seq bigint not null,                     -- of the last job that took it
    primary key (kind, tenant, task, key)
);
create index {=keys_of} on {keys} (seq);
create table {stash} (
    seq bigint primary key,                  -- of the holder it waits behind
    job text not null                        -- JSON of the new job
);

-- What is not plain, in one row that every hot statement reads: see `locking.py`.
create table {special} (
    queues text[] collate "C" not null,      -- their jobs may be held back, ranked or refused
    tasks text[] collate "C" not null,       -- they have limits, so their jobs may be held back
    tasked text[] collate "C" not null       -- queues that may hold jobs of such tasks
) with (fillfactor = 50);
insert into {special} values (array[]::text[], array[]::text[], array[]::text[]);

create function {lock_key}(key text) returns bigint language sql stable as $body$
    select hashtextextended(key, '{jobs}'::regclass::oid::bigint)
$body$;

-- Begin a statement about plain queues: what is special is read after the lock was got.
create function {enter}(out queues text[], out tasks text[], out tasked text[])
language plpgsql as $body$
begin
    perform pg_advisory_xact_lock_shared({lock_key}('all'));
    select known.queues, known.tasks, known.tasked into queues, tasks, tasked
    from {special} as known;
end
$body$;
