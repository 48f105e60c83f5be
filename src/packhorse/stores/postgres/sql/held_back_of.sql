-- Jobs that are held back for another reason than their line of order, of which something is asked.
select seq, queue from {jobs}
where lane = 6 and blocked_by is distinct from order_line and {condition} = %s
