-- Jobs, their history and tags, the workers that hold them, the queues they wait in.
--
-- A job stands in one lane, and one index serves them all (packhorse_lanes):
--   0 ready      rank, place: the order of claiming   queued
--   1 suspect    the same; was lost with its worker, runs alone
--   2 parked     the same; no live worker knows its task
--   3 waiting    rank = due_us, place = seq           pending, failed, timeout
--   4 held       as when it was ready                 processing
--   5 dead       rank = seq                           dead letters
--   6 held back  as when it was ready; blocked_by names the gate that is closed, null: its line
--   null         completed, cancelled
-- status: 0 pending 1 queued 2 processing 3 completed 4 failed 5 cancelled 6 timeout 7 dead

create table packhorse_schema (version integer not null);
insert into packhorse_schema (version) values (0);

create table packhorse_jobs (
    seq integer primary key,
    id text not null unique,
    task text not null,
    queue text not null,
    status integer not null,
    lane integer,
    rank integer not null,
    place integer not null,
    priority integer not null,
    due_us integer not null,
    created_us integer not null,
    updated_us integer not null,
    ready_us integer,
    timeout_us integer,
    deadline_us integer,
    tenant text not null,
    trace_id text,                           -- null: made from the id
    extra text,                              -- JSON: tags, options, upstream_request_id, created_by
    payload text not null,
    fence integer not null default 0,        -- rises with every claim, never falls
    settled integer not null default 0,      -- fence * 16 + kind of the owner's last settlement
    suspect integer not null default 0,
    alone integer not null default 0,        -- the running attempt runs alone
    cancel_requested integer not null default 0,
    kept_rank integer,                       -- of a rescued job that waits for its turn
    kept_place integer,
    attempts integer not null default 0,
    failures integer not null default 0,
    crashes integer not null default 0,
    lone_crashes integer not null default 0,
    snoozes integer not null default 0,
    releases integer not null default 0,
    worker text,                             -- the holder, or the last one
    started_us integer,
    hold_us integer,                         -- until when the claim may be held
    finished_us integer,
    expires_us integer,                      -- when upkeep next takes something away
    record_until_us integer,
    result_until_us integer,
    parked_us integer,
    dead_reason text,
    dead_letter text,
    error text,                              -- JSON
    progress text,                           -- JSON
    result text,                             -- JSON
    ordering_key text,
    concurrency_key text,
    rate_key text,
    weight integer not null default 1,
    line text,                               -- jobs that share all their gates, while unfinished
    order_line text,                         -- its line of order, while it stands in it
    line_no integer,                         -- its number there
    blocked_by text
);
create index packhorse_lanes on packhorse_jobs (lane, queue, rank, place, status)
where lane is not null;
create index packhorse_finished on packhorse_jobs (expires_us, queue, status)
where finished_us is not null;

create index packhorse_lines on packhorse_jobs (line, lane, rank, place) where line is not null;
create index packhorse_order on packhorse_jobs (order_line, line_no) where order_line is not null;
create index packhorse_blocked on packhorse_jobs (blocked_by, queue, task, rank, place)
where blocked_by is not null;
create index packhorse_heavy on packhorse_jobs (blocked_by, queue, rank, place)
where blocked_by is not null and weight > 1;

-- Kept apart, so that jobs without them pay nothing.
create table packhorse_deadlines (
    deadline_us integer not null,
    seq integer not null,
    primary key (deadline_us, seq)
) without rowid;
create table packhorse_tags (
    tag text not null,
    seq integer not null,
    primary key (tag, seq)
) without rowid;
create index packhorse_tags_of on packhorse_tags (seq);
create table packhorse_interests (seq integer primary key);

-- Every attempt that ended otherwise than well; the good end is in the job itself.
create table packhorse_attempts (
    seq integer not null,
    attempt integer not null,
    status integer not null,
    started_us integer not null,
    finished_us integer not null,
    worker text not null,
    will_retry integer not null,
    error text,
    primary key (seq, attempt)
) without rowid;

create table packhorse_workers (
    worker text primary key,
    lease_us integer not null,
    expires_us integer not null,
    started_us integer not null,
    renewed_us integer not null,
    host text not null,
    pid integer not null,
    version text not null,
    concurrency integer not null,
    running integer not null,
    queues text not null,
    tasks text not null
) without rowid;

create table packhorse_queues (
    name text primary key,
    priority integer not null default 0,     -- these two as they hold
    dead_letter text,
    paused integer not null default 0,
    closed integer not null default 0,
    limited integer not null default 0,      -- workers or producers may wait for its jobs to end
    tenanted integer not null default 0,     -- a job with a tenant was submitted: passes are dealt
    special integer not null default 0,      -- a submit has to look at its settings
    declared text,                           -- JSON; null: never declared
    overridden text,                         -- JSON; an operator's, which holds instead
    settings text                            -- JSON; those that hold
) without rowid;
create index packhorse_shelves on packhorse_queues (dead_letter) where dead_letter is not null;

-- Limits, fairness and uniqueness. A gate is written as its kind and name, joined by ␟.
create table packhorse_tasks (name text primary key, settings text not null) without rowid;
create table packhorse_shut (
    gate text primary key,
    queue text,                              -- of a pause; null: of a task's rate
    until_us integer                         -- null: until it is opened by hand
) without rowid;
create table packhorse_reopens (             -- gates that hold jobs back and open by time
    gate text primary key,
    at_us integer not null,
    since_us integer not null                -- when that was written
) without rowid;
create table packhorse_rates (gate text primary key, log text not null) without rowid;
create table packhorse_passes (
    queue text not null,
    priority integer not null,
    tenant text not null,
    pass integer not null,
    primary key (queue, priority, tenant)
) without rowid;
create table packhorse_keys (
    kind text not null,                      -- unique, idempotency
    tenant text not null,
    task text not null,
    key text not null,
    seq integer not null,                    -- of the last job that took it
    primary key (kind, tenant, task, key)
) without rowid;
create index packhorse_keys_of on packhorse_keys (seq);
create table packhorse_stash (
    seq integer primary key,                 -- of the holder it waits behind
    job text not null                        -- JSON of the new job
);

create table packhorse_sequence (value integer not null);
insert into packhorse_sequence (value) values (0);
