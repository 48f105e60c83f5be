-- Shut a gate by hand; no row when it is shut already.
insert into packhorse_shut (gate, queue) values (?, ?) on conflict do nothing
