-- Ready jobs of its queue that rank before a job, held back or not; of a suspect, suspects.
select count(*)
from {jobs} as own
join {jobs} as other on other.queue = own.queue
where
    own.seq = %s and (other.rank, other.place) < (own.rank, own.place)
    and case when own.lane = 1 then other.lane = 1 else other.lane in (0, 6) end
