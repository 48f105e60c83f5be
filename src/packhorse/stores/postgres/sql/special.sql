-- What is not plain.
select queues, tasks, tasked from {special}
