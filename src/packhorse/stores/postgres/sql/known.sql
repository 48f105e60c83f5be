-- Status of the jobs that are there among these ids.
select id, status from {jobs} where id = any(%s::text[])
