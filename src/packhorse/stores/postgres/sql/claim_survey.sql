-- Each queue asked for, in the order of service: its settings, is it paused, has it ready jobs and
-- suspects, when is its next waiting job due; until when the worker's lease runs; and whether any
-- limits are set beside those of queues, and when time next opens a gate.
select
    asked.queue,
    queue.settings,
    coalesce(queue.paused, false),
    exists (select 1 from {jobs} where lane = 0 and queue = asked.queue),
    exists (select 1 from {jobs} where lane = 1 and queue = asked.queue),
    (select min(rank) from {jobs} where lane = 3 and queue = asked.queue),
    (select expires_us from {workers} where worker = %(worker)s),
    exists (select 1 from {tasks}) or exists (select 1 from {shut}),
    (select min(case when since_us > %(now)s then 0 else at_us end) from {reopens})
from unnest(%(queues)s::text[]) with ordinality as asked (queue, number)
left join {queues} as queue on queue.name = asked.queue
order by coalesce(queue.priority, 0), asked.number
