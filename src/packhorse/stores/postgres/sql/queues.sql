-- Every queue declared, set, paused, closed, or holding a job.
select
    known.name, queue.settings, coalesce(queue.paused, false), queue.declared is not null,
    coalesce(queue.closed, false), queue.overridden is not null
from (
    select name from {queues} where settings is not null or paused or closed
    union
    select queue from {shut} where queue is not null
    union
    select queue from {jobs}
) as known
left join {queues} as queue on queue.name = known.name
order by known.name
