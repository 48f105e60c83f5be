-- A task has no limits any more.
delete from packhorse_tasks where name = ?
