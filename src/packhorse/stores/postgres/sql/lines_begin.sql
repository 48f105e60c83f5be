-- Queues with an unfinished job of a task that has limits now: gates may hold such jobs back.
insert into {queues} (name, lined, tasked)
select distinct queue, true, true from {jobs} where lane is not null and lane <> 5 and task = %s
on conflict (name) do update set lined = true, tasked = true
