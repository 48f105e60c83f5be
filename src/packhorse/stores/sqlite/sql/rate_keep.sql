-- Keep the log of a rate gate.
insert into packhorse_rates (gate, log) values (?, ?)
on conflict (gate) do update set log = excluded.log
