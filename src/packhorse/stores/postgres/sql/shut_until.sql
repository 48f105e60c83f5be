-- Close a gate for a time; never make an earlier closing shorter.
insert into {shut} as known (gate, task, until_us) values (%s, %s, %s)
on conflict (gate) do update set until_us = greatest(known.until_us, excluded.until_us)
