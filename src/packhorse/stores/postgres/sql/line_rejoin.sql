-- A job that had finished stands at the end of its line.
update {jobs} set line = %s, order_line = %s, line_no = %s where seq = %s
