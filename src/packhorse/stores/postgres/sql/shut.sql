-- Shut a gate by hand; no row when it is shut already.
insert into {shut} (gate, queue) values (%s, %s) on conflict do nothing
