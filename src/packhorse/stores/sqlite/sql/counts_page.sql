-- Finished jobs per queue and status, from one page of the index.
select queue, status, count(*)
from (
    select queue, status from packhorse_jobs indexed by packhorse_finished
    where
        finished_us is not null
        and (expires_us, queue, status, seq) > (:expires_us, :queue, :status, :seq)
    order by expires_us, queue, status, seq
    limit :size
)
group by queue, status
