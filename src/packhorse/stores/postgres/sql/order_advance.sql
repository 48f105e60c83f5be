-- The heads of lines are ready, if they were held back only because they were not the heads.
update {jobs} as job set lane = 0, blocked_by = null
from unnest(%s::text[]) as asked (line)
cross join lateral (
    select head.seq from {jobs} as head
    where head.order_line = asked.line order by head.line_no limit 1
) as first
where job.seq = first.seq and job.lane = 6 and job.blocked_by = job.order_line
returning job.queue
