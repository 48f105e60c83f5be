-- Forget workers, unless they have come back.
delete from {workers} where worker = any(%(workers)s::text[]) and expires_us <= %(latest)s
