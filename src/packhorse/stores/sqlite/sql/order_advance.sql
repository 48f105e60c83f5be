-- The heads of lines are ready, if they were held back only because they were not the heads.
-- The plus signs keep the planner from looking through all that is held back.
update packhorse_jobs set lane = 0
where
    seq in (
        select (
            select head.seq from packhorse_jobs as head
            where head.order_line = line.value order by head.line_no limit 1
        )
        from json_each(?) as line
    )
    and +lane = 6 and +blocked_by is null
returning queue
