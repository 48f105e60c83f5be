-- Ready jobs of a served queue that no live worker of that queue knows, among those next to go.
with head as (
    select seq, queue, task from packhorse_jobs
    where lane = :lane and queue = :queue
    order by rank, place
    limit :window
),
known as (
    select task.value
    from packhorse_workers as worker, json_each(worker.queues) as served,
        json_each(worker.tasks) as task
    where worker.expires_us > :now and served.value = :queue
)
select head.seq, head.task from head
where head.task not in known and '*' not in known
order by head.seq
limit :limit
