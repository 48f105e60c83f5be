-- A job that came in before the heads of some lines of order takes their turn.
update {jobs} as job
set lane = 6, blocked_by = order_line
where
    order_line = any(%s::text[]) and lane = 0
    and exists (
        select 1 from {jobs} as head
        where head.order_line = job.order_line and head.line_no < job.line_no
    )
