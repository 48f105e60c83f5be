-- A queue has its first job with a tenant.
insert into {queues} (name, tenanted) values (%s, true)
on conflict (name) do update set tenanted = true
