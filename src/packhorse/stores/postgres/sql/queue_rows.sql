-- Queues as a submit sees them.
select
    asked.queue,
    queue.settings,
    coalesce(queue.closed, false),
    coalesce(queue.tenanted, false),
    coalesce(queue.lined, false),
    exists (select 1 from {queues} as other where other.dead_letter = asked.queue),
    exists (select 1 from {tasks})
from unnest(%s::text[]) as asked (queue)
left join {queues} as queue on queue.name = asked.queue
