-- A queue begins to deal passes: what is ready gets them in the order it has.
update {jobs} as job
set rank = job.priority * %(passes)s + least(numbered.number, %(most)s) * %(stride)s
from (
    select seq, row_number() over (partition by priority order by place) - 1 as number
    from {jobs} where lane in (0, 6) and queue = %(queue)s
) as numbered
where job.seq = numbered.seq
