-- Whether the queue ?3, or the limits of the task ?2, have a say in a plain job: an expression.
exists (select 1 from packhorse_queues where name = ?3 and (closed or tenanted or special))
or exists (select 1 from packhorse_queues where dead_letter = ?3)
or exists (select 1 from packhorse_tasks where name = ?2)
