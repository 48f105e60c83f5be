-- Those of these queues that are not paused.
select value from json_each(?)
where value not in (select name from packhorse_queues where paused = 1)
