-- Since when the longest-waiting of the next ready jobs of each queue waits.
select queue.value, (
    select min(head.ready_us) from (
        select ready_us from packhorse_jobs
        where lane in (0, 1, 6) and queue = queue.value
        limit :window
    ) as head
)
from json_each(:queues) as queue
