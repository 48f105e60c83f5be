-- Jobs whose attempt or waiting is over: the next in the lines they have left become their heads, as
-- order_advance.sql has it.
update packhorse_jobs set lane = 0
where
    seq in (
        select (
            select head.seq from packhorse_jobs as head
            where head.order_line = :line || over.queue || :part || over.tenant || :part
                || over.ordering_key
            order by head.line_no limit 1
        )
        from json_each(:values) as asked
        join packhorse_jobs as over on over.{column} = asked.value
        where
            over.ordering_key is not null and over.order_line is null
            and over.finished_us is not null
    )
    and +lane = 6 and +blocked_by is null
returning queue
