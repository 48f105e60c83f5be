-- Index the tags of jobs just added.
insert into {tags} (tag, seq)
select tagged.tag, job.seq
from unnest(%(ids)s::text[], %(tags)s::text[]) as tagged (id, tag)
join {jobs} as job on job.id = tagged.id
on conflict do nothing
