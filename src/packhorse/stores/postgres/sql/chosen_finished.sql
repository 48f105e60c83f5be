-- Finished jobs that a filter means, oldest first; the runner adds the conditions.
select seq from {jobs} as job
where finished_us is not null and {conditions}
order by seq
limit %(limit)s
