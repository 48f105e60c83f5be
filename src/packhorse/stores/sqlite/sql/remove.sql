-- Remove jobs, or what belongs to them.
delete from packhorse_{table} where seq in (select value from json_each(?))
