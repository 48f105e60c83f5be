-- The keys and tenants that are paused.
select gate from {shut} where queue is not null
