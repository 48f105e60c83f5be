-- A tenant's last pass is at least this one.
insert into packhorse_passes (queue, priority, tenant, pass)
values (:queue, :priority, :tenant, :pass)
on conflict (queue, priority, tenant) do update set pass = max(pass, excluded.pass)
