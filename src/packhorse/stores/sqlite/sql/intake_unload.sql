-- Give every job of the intake its number and its place, behind the last one: that is asked for
-- before, since what reads the table it adds to goes through a temporary one. Their ids were new;
-- one that is there all the same was put down again after a commit in doubt.
insert into packhorse_jobs (
    seq, id, task, queue, status, lane, rank, place, priority, due_us, created_us, updated_us,
    ready_us, timeout_us, tenant, trace_id, extra, payload
)
select
    ?6 + job.number,
    job.id,
    job.task,
    job.queue,
    case when job.due_us <= job.created_us then ?1 else ?2 end,
    case when job.due_us <= job.created_us then ?3 else ?4 end,
    case when job.due_us <= job.created_us then job.priority * ?5 else job.due_us end,
    ?6 + job.number,
    job.priority,
    job.due_us,
    job.created_us,
    job.created_us,
    job.created_us,
    job.timeout_us,
    '',
    job.trace_id,
    job.extra,
    job.payload
from packhorse_intake as job
where true
order by job.number
on conflict (id) do nothing
