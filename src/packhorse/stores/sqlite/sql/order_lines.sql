-- The lines of order there are, the first of them: from line to line.
with recursive known (line) as (
    select min(order_line) from packhorse_jobs where order_line is not null
    union all
    select (
        select min(job.order_line) from packhorse_jobs as job
        where job.order_line > known.line
    )
    from known where known.line is not null
    limit ?
)
select line from known where line is not null
