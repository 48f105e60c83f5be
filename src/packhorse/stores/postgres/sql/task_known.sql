-- The limits of a task.
select settings from {tasks} where name = %s
