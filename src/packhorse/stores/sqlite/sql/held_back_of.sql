-- Jobs that are held back for another reason than their line of order, of which something is asked.
select seq, queue from packhorse_jobs
where lane = 6 and blocked_by is not null and {condition} = ?
