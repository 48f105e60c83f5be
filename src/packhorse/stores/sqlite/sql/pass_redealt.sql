-- The last passes of those without a tenant, who were alone until now.
insert into packhorse_passes (queue, priority, tenant, pass)
select queue, priority, '', min(count(*) - 1, :most) * :stride
from packhorse_jobs where lane in (0, 6) and queue = :queue
group by priority
