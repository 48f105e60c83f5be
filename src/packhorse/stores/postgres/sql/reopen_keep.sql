-- Remember when time opens a gate, and since when that is known.
insert into {reopens} as known (gate, at_us, since_us) values (%s, %s, %s)
on conflict (gate) do update set
    at_us = case
        when known.since_us > excluded.since_us then excluded.at_us
        else least(known.at_us, excluded.at_us)
    end,
    since_us = excluded.since_us
