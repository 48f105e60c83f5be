-- Close a gate for a time; never make an earlier closing shorter.
insert into packhorse_shut (gate, until_us) values (?, ?)
on conflict (gate) do update set until_us = max(until_us, excluded.until_us)
