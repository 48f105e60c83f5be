-- Each queue asked for, in the order of service: its settings, is it paused, has it ready jobs and
-- suspects, when is its next waiting job due; until when the worker's lease runs; and whether any
-- limits are set beside those of queues, and when time next opens a gate.
select
    asked.value as queue,
    queue.settings as settings,
    coalesce(queue.paused, 0) as paused,
    exists (
        select 1 from packhorse_jobs where lane = 0 and queue = asked.value
    ) as ready,
    exists (
        select 1 from packhorse_jobs where lane = 1 and queue = asked.value
    ) as suspects,
    (
        select min(rank) from packhorse_jobs where lane = 3 and queue = asked.value
    ) as next_due_us,
    (select expires_us from packhorse_workers where worker = :worker) as lease_expires_us,
    (
        exists (select 1 from packhorse_tasks) or exists (select 1 from packhorse_shut)
    ) as limited,
    (
        select min(iif(since_us > :now, 0, at_us)) from packhorse_reopens
    ) as reopens_us
from json_each(:queues) as asked
left join packhorse_queues as queue on queue.name = asked.value
order by coalesce(queue.priority, 0), asked.key
