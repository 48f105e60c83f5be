-- The keys and tenants that are paused.
select gate from packhorse_shut where queue is not null
