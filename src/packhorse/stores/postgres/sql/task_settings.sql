-- The limits of tasks: of all, or of some.
select name, settings from {tasks} where %s or name = any(%s::text[])
