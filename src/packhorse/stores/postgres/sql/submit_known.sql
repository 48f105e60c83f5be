-- Status of the jobs that are there among these ids, save those just added.
select id, status from {jobs}
where id = any(%(ids)s::text[]) and seq <> all(%(but)s::bigint[])
