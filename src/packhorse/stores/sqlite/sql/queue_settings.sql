-- What queues are set to.
select settings from packhorse_queues where settings is not null
