-- Remember when time opens a gate, and since when that is known.
insert into packhorse_reopens (gate, at_us, since_us) values (?, ?, ?)
on conflict (gate) do update set
at_us = iif(since_us > excluded.since_us, excluded.at_us, min(at_us, excluded.at_us)),
since_us = excluded.since_us
