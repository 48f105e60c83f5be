-- name: queue_conflicts
-- Queues that are also some queue's dead-letter shelf.
select queue.name, shelf.name from {queues} as queue
join {queues} as shelf on shelf.dead_letter = queue.name
where queue.settings is not null

-- name: queue_flag
-- Set or clear a flag of a queue; no row when nothing changes.
insert into {queues} as queue (name, <flag>)
select :queue, :on
where coalesce((select <flag> from {queues} where name = :queue), {false}) <> :on
on conflict (name) do update set <flag> = excluded.<flag>

-- name: queue_hold
-- Keep the declared, the overridden and the effective settings of a queue.
insert into {queues} (
    name, priority, dead_letter, limited, special, declared, overridden, settings
) values (
    :name, :priority, :dead_letter, :limited, :special, :declared,
    :overridden, :settings
)
on conflict (name) do update set
    priority = excluded.priority, dead_letter = excluded.dead_letter,
    limited = excluded.limited, special = excluded.special, declared = excluded.declared,
    overridden = excluded.overridden, settings = excluded.settings

-- name: queue_known
-- Settings of a queue: declared, overridden and effective.
select declared, overridden, settings from {queues} where name = ?

-- name: queue_settings
-- The effective settings of all queues.
select settings from {queues} where settings is not null

-- name: queue_tenanted
-- Mark a queue that has its first job with a tenant.
insert into {queues} (name, tenanted) values (?, {true})
on conflict (name) do update set tenanted = {true}

-- name: queues_of_task
-- Queues with a ready job of a task.
select distinct queue from {jobs} where lane in ({lane.ready}, {lane.blocked}) and task = ?

-- name: open_queues
-- Those of these queues that are not paused.
select asked.value from {texts ? as asked}
where not exists (select 1 from {queues} where name = asked.value and paused = {true})
order by asked.key

-- name: pauses
-- The keys and tenants that are paused.
select gate from {shut} where queue is not null

-- name: task_forget
-- Remove the limits of a task.
delete from {tasks} where name = ?

-- name: task_keep
-- Keep the limits of a task.
insert into {tasks} (name, settings) values (?, ?)
on conflict (name) do update set settings = excluded.settings

-- name: task_known
-- The limits of a task.
select settings from {tasks} where name = ?

-- name: task_settings
-- The limits of all tasks, or of some.
select name, settings from {tasks} where ? or name {in_texts ?}

-- name: tasks
-- Every task that has limits.
select settings from {tasks} order by name

-- name: served_queues
-- Queues that some live worker serves.
select distinct served.value
from {workers} as worker cross join {elements worker.queues as served}
where worker.expires_us > ?
order by 1
