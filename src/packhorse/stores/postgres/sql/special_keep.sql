-- Write down anew what is not plain; the row stays as it is when that has not changed.
with found as materialized (
    select
        array(
            select name from {queues}
            where special or closed or tenanted or lined
            union
            select dead_letter from {queues} where dead_letter is not null
            union
            select queue from {shut} where queue is not null
            order by 1
        ) as queues,
        array(
            select name from {tasks}
            union
            select task from {shut} where task is not null
            order by 1
        ) as tasks,
        array(select name from {queues} where tasked order by 1) as tasked
)
update {special} as known
set queues = found.queues, tasks = found.tasks, tasked = found.tasked
from found
where
    known.queues <> found.queues or known.tasks <> found.tasks or known.tasked <> found.tasked
