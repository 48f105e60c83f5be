-- Remember the deadlines of jobs just added.
insert into {deadlines} (deadline_us, seq)
select new.deadline_us, new.seq
from unnest(%(deadlines)s::bigint[], %(seqs)s::bigint[]) as new (deadline_us, seq)
on conflict do nothing
