-- A job that came in before the heads of some lines of order takes their turn.
update packhorse_jobs
set lane = 6
where
    order_line in (select value from json_each(?)) and +lane = 0
    and exists (
        select 1 from packhorse_jobs as head
        where head.order_line = packhorse_jobs.order_line
            and head.line_no < packhorse_jobs.line_no
    )
