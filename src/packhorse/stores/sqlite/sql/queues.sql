-- Every queue declared, set, paused, closed, or holding a job.
select
    known.name, queue.settings, coalesce(queue.paused, 0), queue.declared is not null,
    coalesce(queue.closed, 0), queue.overridden is not null
from (
    select name from packhorse_queues where settings is not null or paused = 1 or closed = 1
    union
    select queue from packhorse_shut where queue is not null
    union
    select queue from packhorse_jobs where lane is not null
    union
    select queue from packhorse_jobs indexed by packhorse_finished where finished_us is not null
) as known
left join packhorse_queues as queue on queue.name = known.name
order by known.name
