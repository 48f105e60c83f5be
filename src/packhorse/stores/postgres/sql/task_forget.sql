-- A task has no limits any more.
delete from {tasks} where name = %s
