-- The last passes of some tenants.
select tenant, pass from {passes}
where
    queue = %(queue)s and priority = %(priority)s
    and tenant = any(%(tenants)s::text[])
