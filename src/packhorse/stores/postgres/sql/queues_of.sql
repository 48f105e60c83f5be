-- The queues of jobs, and whether somebody waits for one of them to end to be submitted.
select
    array(select distinct queue from {jobs} where id = any(%(ids)s::text[])),
    exists (
        select 1 from {stash} as stashed
        join {jobs} as holder on holder.seq = stashed.seq
        where holder.id = any(%(ids)s::text[])
    )
