-- Does any job wait for the holder of its key to end?
select exists (select 1 from packhorse_stash)
