-- Somebody waits for this job's end, unless it has ended already.
update {jobs} set awaited = true where id = %s and finished_us is null and not awaited
