-- Queues have jobs that gates may hold back.
insert into {queues} as known (name, lined, tasked)
select asked.name, true, %(tasked)s from unnest(%(queues)s::text[]) as asked (name)
on conflict (name) do update set lined = true, tasked = known.tasked or excluded.tasked
