-- A job takes a key.
insert into {keys} (kind, tenant, task, key, seq)
select %s, %s, %s, %s, seq from {jobs} where id = %s
on conflict (kind, tenant, task, key) do update set seq = excluded.seq
