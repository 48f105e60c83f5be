-- Those of these jobs that somebody waits for and that have finished.
select id from {jobs} where {column} = any(%(values)s::{type}[]) and awaited and finished_us is not null
