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
