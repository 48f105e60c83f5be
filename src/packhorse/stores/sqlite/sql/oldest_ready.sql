-- Since when the longest-waiting of the next ready jobs of each queue and priority waits: of those
-- that rank by priority, and of those that rank by age, where all priorities stand mixed.
select
    queue.value,
    level.value,
    (
        select min(head.ready_us) from (
            select ready_us from packhorse_jobs
            where
                lane in (0, 1, 6) and queue = queue.value
                and rank >= level.value * :passes and rank < (level.value + 1) * :passes
            limit :window
        ) as head
    ),
    (
        select min(head.ready_us) from (
            select ready_us, priority from packhorse_jobs
            where lane in (0, 1, 6) and queue = queue.value and rank >= :aged
            limit :window
        ) as head
        where head.priority = level.value
    )
from json_each(:queues) as queue, json_each(:levels) as level
