-- Hand the next jobs of a queue that this worker may run to it. Rank and place stay, so that a
-- release finds the old place. In the ready lane only heads of lines stand; in others that is asked.
with picked as materialized (
    select seq, ctid as row from {jobs} as job
    where
        lane = %(lane)s and queue = %(queue)s
        and (deadline_us is null or deadline_us > %(now)s)
        and (%(any_task)s or task = any(%(tasks)s::text[]))
        and (
            %(lane)s = 0 or order_line is null or not exists (
                select 1 from {jobs} as head
                where head.order_line = job.order_line and head.line_no < job.line_no
            )
        )
    order by rank, place
    limit %(limit)s
    for update of job skip locked
),
handed as (
    update {jobs} as job
    set
        status = 2, lane = 4, blocked_by = null, fence = fence + 1, worker = %(worker)s,
        alone = %(alone)s, started_us = %(now)s, updated_us = %(now)s,
        hold_us = %(now)s + coalesce(timeout_us, %(default_timeout_us)s) + %(grace_us)s
    from picked
    where job.ctid = any(array(select row from picked)) and job.seq = picked.seq
    returning job.rank, job.place, {handed_columns}
)
select * from handed order by rank, place
