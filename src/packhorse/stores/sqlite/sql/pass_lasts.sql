-- The last passes of some tenants.
select tenant, pass from packhorse_passes
where
    queue = :queue and priority = :priority
    and tenant in (select value from json_each(:tenants))
