-- A queue begins to deal passes: what is ready gets them in the order it has.
update packhorse_jobs
set rank = packhorse_jobs.priority * :passes + min(numbered.number, :most) * :stride
from (
    select seq, row_number() over (partition by priority order by place) - 1 as number
    from packhorse_jobs where lane in (0, 6) and queue = :queue
) as numbered
where packhorse_jobs.seq = numbered.seq
