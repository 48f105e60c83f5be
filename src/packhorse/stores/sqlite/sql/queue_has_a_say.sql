-- Whether a queue, or the limits of a task, have a say in a plain job: an expression.
exists (select 1 from packhorse_queues where name = {queue} and (closed or tenanted or special))
or exists (select 1 from packhorse_queues where dead_letter = {queue})
or exists (select 1 from packhorse_tasks where name = {task})
