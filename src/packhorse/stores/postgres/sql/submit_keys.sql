-- Keep the keys of a job just added; order_line and line_no make it stand in its line of order.
update {jobs}
set
    ordering_key = %s, concurrency_key = %s, rate_key = %s, weight = %s, line = %s, order_line = %s,
    line_no = case when order_line is null then %s else line_no end
where seq = %s and id = %s
