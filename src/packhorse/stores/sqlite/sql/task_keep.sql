-- Keep the limits of a task.
insert into packhorse_tasks (name, settings) values (?, ?)
on conflict (name) do update set settings = excluded.settings
