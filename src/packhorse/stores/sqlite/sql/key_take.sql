-- A job takes a key.
insert into packhorse_keys (kind, tenant, task, key, seq)
select ?, ?, ?, ?, seq from packhorse_jobs where id = ?
on conflict (kind, tenant, task, key) do update set seq = excluded.seq
