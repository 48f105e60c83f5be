-- Queues with a ready job of a task.
select distinct queue from {jobs} where lane in (0, 6) and task = %s
