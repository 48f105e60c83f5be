-- Somebody waits for this job's end, unless it has ended already.
insert into packhorse_interests (seq)
select seq from packhorse_jobs where id = ? and finished_us is null
on conflict do nothing
