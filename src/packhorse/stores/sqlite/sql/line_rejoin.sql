-- A job that had finished stands at the end of its line.
update packhorse_jobs set line = ?, order_line = ?, line_no = ? where seq = ?
