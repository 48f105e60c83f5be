-- The limits of tasks: of all, or of some.
select name, settings from packhorse_tasks where ? or name in (select value from json_each(?))
