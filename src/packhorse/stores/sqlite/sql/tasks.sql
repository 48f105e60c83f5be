-- Every task that has limits.
select settings from packhorse_tasks order by name
