-- Remember the last passes of tenants.
insert into {passes} (queue, priority, tenant, pass)
select queue, priority, tenant, pass from json_populate_recordset(null::{passes}, %s::json)
on conflict (queue, priority, tenant) do update set pass = excluded.pass
