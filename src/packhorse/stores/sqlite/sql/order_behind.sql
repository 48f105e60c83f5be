-- Of jobs that just became ready, hold back those that are not the head of their line of order. No
-- gate is written down for them: their line says it, and one more index would be kept for each.
update packhorse_jobs
set lane = 6
where
    seq in (select value from json_each(?)) and lane = 0 and order_line is not null
    and exists (
        select 1 from packhorse_jobs as head
        where head.order_line = packhorse_jobs.order_line
            and head.line_no < packhorse_jobs.line_no
    )
