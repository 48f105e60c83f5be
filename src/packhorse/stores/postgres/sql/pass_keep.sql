-- Remember the last passes of tenants.
insert into {passes} (queue, priority, tenant, pass)
select %(queue)s, %(priority)s, last.tenant, last.pass
from unnest(%(tenants)s::text[], %(passes)s::bigint[]) as last (tenant, pass)
on conflict (queue, priority, tenant) do update set pass = excluded.pass
