-- Is any job held back?
select exists (select 1 from packhorse_jobs where lane = 6)
