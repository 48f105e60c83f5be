-- Queues with a ready job of a task.
select distinct queue from packhorse_jobs where lane in (0, 6) and task = ?
