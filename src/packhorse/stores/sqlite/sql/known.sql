-- Status of the jobs that are there among these ids.
select id, status from packhorse_jobs where id in (select value from json_each(?))
