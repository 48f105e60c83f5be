-- Remember the deadlines of jobs just added.
insert into packhorse_deadlines (deadline_us, seq)
select deadline_us, seq from packhorse_jobs
where id in (select value from json_each(?)) and deadline_us is not null
on conflict do nothing
