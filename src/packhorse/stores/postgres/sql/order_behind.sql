-- Of jobs that just became ready, hold back those that are not the head of their line of order.
update {jobs} as job
set lane = 6, blocked_by = order_line
where
    seq = any(%s::bigint[]) and lane = 0 and order_line is not null
    and exists (
        select 1 from {jobs} as head
        where head.order_line = job.order_line and head.line_no < job.line_no
    )
