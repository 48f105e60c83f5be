-- What queues are set to.
select settings from {queues} where settings is not null
