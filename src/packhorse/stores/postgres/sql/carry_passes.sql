-- The last passes of tenants are at least these.
insert into {passes} as known (queue, priority, tenant, pass)
select queue, priority, tenant, max(pass)
from json_populate_recordset(null::{passes}, %s::json)
group by queue, priority, tenant
on conflict (queue, priority, tenant) do update set pass = greatest(known.pass, excluded.pass)
