-- The limits of a task.
select settings from packhorse_tasks where name = ?
