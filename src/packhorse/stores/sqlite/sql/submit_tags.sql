-- Index the tags of jobs just added.
insert into packhorse_tags (tag, seq)
select distinct tag.value, job.seq
from packhorse_jobs as job, json_each(job.extra, '$.tags') as tag
where job.id in (select value from json_each(?))
on conflict do nothing
