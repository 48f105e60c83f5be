-- Ready jobs of a served queue that no live worker of that queue knows, among those next to go.
with head as (
    select seq, queue, task from {jobs}
    where lane = %(lane)s and queue = %(queue)s
    order by rank, place
    limit %(window)s
)
select head.seq, head.task from head
where not exists (
    select 1 from {workers} as worker
    where
        worker.expires_us > %(now)s and %(queue)s::text = any(worker.queues)
        and (head.task = any(worker.tasks) or '*' = any(worker.tasks))
)
order by head.seq
limit %(limit)s
