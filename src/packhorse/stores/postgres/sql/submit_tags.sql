-- Index the tags of jobs just added; a job that was known has another number, and keeps its own.
insert into {tags} (tag, seq)
select tagged.tag, job.seq
from unnest(%(seqs)s::bigint[], %(tags)s::text[]) as tagged (seq, tag)
join {jobs} as job on job.seq = tagged.seq
on conflict do nothing
