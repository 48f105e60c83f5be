-- Plain jobs that were submitted one at a time, until the next plan of any other kind gives them
-- their numbers and places. One page goes into the log where a row, its id and its lane are three.
create table packhorse_intake (
    number integer primary key,              -- in the order of submitting; from 1, as it empties
    id text not null,
    task text not null,
    queue text not null,
    priority integer not null,
    timeout_us integer,
    created_us integer not null,
    due_us integer not null,
    trace_id text,                           -- as in packhorse_jobs
    extra text,
    payload text not null
);
