-- Take some places behind all numbers ever given out; answers the last one taken.
update packhorse_sequence
set value = max(value, coalesce((select max(seq) from packhorse_jobs), 0)) + ?
returning value
