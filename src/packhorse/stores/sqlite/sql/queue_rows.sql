-- Queues as a submit sees them, and the last number given out as sequence or place.
select
    asked.value,
    queue.settings,
    coalesce(queue.closed, 0),
    coalesce(queue.tenanted, 0),
    exists (select 1 from packhorse_queues as other where other.dead_letter = asked.value),
    max(
        coalesce((select max(seq) from packhorse_jobs), 0),
        (select value from packhorse_sequence)
    ),
    exists (select 1 from packhorse_tasks)
from json_each(?) as asked
left join packhorse_queues as queue on queue.name = asked.value
