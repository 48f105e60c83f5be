-- A queue has its first job with a tenant.
insert into packhorse_queues (name, tenanted) values (?, 1)
on conflict (name) do update set tenanted = 1
