-- A job waits behind a running holder of its key; the newest wins.
insert into {stash} (seq, job) values (%s, %s)
on conflict (seq) do update set job = excluded.job
