-- The last passes of those without a tenant, who were alone until now.
insert into {passes} (queue, priority, tenant, pass)
select queue, priority, '', least(count(*) - 1, %(most)s) * %(stride)s
from {jobs} where lane in (0, 6) and queue = %(queue)s
group by queue, priority
