-- Every task that has limits.
select settings from {tasks} order by name
