-- Keep the limits of a task.
insert into {tasks} (name, settings) values (%s, %s)
on conflict (name) do update set settings = excluded.settings
