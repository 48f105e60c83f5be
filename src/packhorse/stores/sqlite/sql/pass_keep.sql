-- Remember a tenant's last pass.
insert into packhorse_passes (queue, priority, tenant, pass)
values (:queue, :priority, :tenant, :pass)
on conflict (queue, priority, tenant) do update set pass = excluded.pass
