-- The head of a line, and whose it is.
select id, tenant from packhorse_jobs where order_line = ? order by line_no limit 1
