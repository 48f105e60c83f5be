-- Whether jobs stand in the intake.
select 1 from packhorse_intake limit 1
