-- Of jobs that just became ready, hold back those that stand behind one of their line that is held
-- back, under the same gate; who comes before all of these asks the gate.
update {jobs} as job
set lane = 6, blocked_by = behind.gate
from (
    select own.seq, ahead.blocked_by as gate
    from {jobs} as own
    cross join lateral (
        select other.blocked_by from {jobs} as other
        where
            other.line = own.line and other.lane = 6
            and (other.deadline_us is null or other.deadline_us > %(now)s)
            and (other.rank, other.place) < (own.rank, own.place)
        order by other.rank, other.place
        limit 1
    ) as ahead
    where
        own.seq = any(%(seqs)s::bigint[]) and own.lane = 0 and own.line is not null
        and own.order_line is null
) as behind
where job.seq = behind.seq
