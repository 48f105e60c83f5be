-- Those of these gates that hold jobs back.
select value from json_each(?)
where exists (select 1 from packhorse_jobs where blocked_by = value)
