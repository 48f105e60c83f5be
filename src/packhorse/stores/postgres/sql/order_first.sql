-- The head of a line, and whose it is.
select id, tenant from {jobs} where order_line = %s order by line_no limit 1
