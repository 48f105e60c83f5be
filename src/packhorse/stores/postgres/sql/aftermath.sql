-- Jobs whose attempt or waiting is over: has it ended, and does it leave its line?
select
    job.seq, job.finished_us is not null, job.finished_us is not null and job.order_line is null,
    queue.settings, job.queue, job.task, job.tenant, job.ordering_key, job.concurrency_key,
    job.rate_key
from unnest(%(values)s::{type}[]) with ordinality as asked (value, number)
join {jobs} as job on job.{column} = asked.value
left join {queues} as queue on queue.name = job.queue
order by asked.number
