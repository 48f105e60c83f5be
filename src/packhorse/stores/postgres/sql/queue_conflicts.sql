-- Queues that are also some queue's dead-letter shelf.
select queue.name, shelf.name from {queues} as queue
join {queues} as shelf on shelf.dead_letter = queue.name
where queue.settings is not null
