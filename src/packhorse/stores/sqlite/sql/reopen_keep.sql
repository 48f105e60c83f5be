-- Remember when time opens a gate.
insert into packhorse_reopens (gate, at_us) values (?, ?)
on conflict (gate) do update set at_us = min(at_us, excluded.at_us)
