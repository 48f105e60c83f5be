-- Jobs per queue and status.
select queue, status, count(*) from {jobs} group by queue, status order by 1, 2
