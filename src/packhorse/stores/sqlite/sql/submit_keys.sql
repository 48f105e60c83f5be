-- Keep the keys of a job just added; order_line and line_no make it stand in its line of order.
update packhorse_jobs
set
    ordering_key = ?, concurrency_key = ?, rate_key = ?, weight = ?, line = ?, order_line = ?,
    line_no = case when order_line is null then ? else line_no end
where seq = ? and id = ?
