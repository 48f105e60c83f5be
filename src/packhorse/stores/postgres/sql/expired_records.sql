-- Finished jobs of which something may go: the whole record, or only the result.
select seq, record_until_us is not null and record_until_us <= %(now)s as whole
from {jobs}
where finished_us is not null and expires_us is not null and expires_us <= %(now)s
order by expires_us, seq
limit %(limit)s
