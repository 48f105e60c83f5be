-- Is any job held back?
select exists (select 1 from {jobs} where lane = 6)
