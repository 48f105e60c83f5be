-- Keep the log of a rate gate.
insert into {rates} (gate, log) values (%s, %s)
on conflict (gate) do update set log = excluded.log
