-- Due jobs become ready, in their places; one that kept its place has been ready before.
update {jobs} as job
set
    status = 1, lane = case when job.suspect then 1 else 0 end, rank = due.rank, place = due.place,
    updated_us = %(now)s,
    ready_us = case when job.kept_place is null then %(now)s else job.ready_us end,
    kept_rank = null, kept_place = null
from unnest(%(seqs)s::bigint[], %(ranks)s::bigint[], %(places)s::bigint[]) as due (seq, rank, place)
where job.seq = due.seq
