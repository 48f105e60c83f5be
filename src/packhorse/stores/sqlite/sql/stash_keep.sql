-- A job waits behind a running holder of its key; the newest wins.
insert into packhorse_stash (seq, job) values (?, ?)
on conflict (seq) do update set job = excluded.job
