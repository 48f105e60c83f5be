-- Jobs that a filter means, newest first; the runner adds the conditions that were given.
select {columns} from {jobs} as job
where {conditions}
order by seq desc
limit %(limit)s
