-- The last job of a page of the index of finished ones; none, if there is not a whole page left.
select expires_us, queue, status, seq from packhorse_jobs indexed by packhorse_finished
where
    finished_us is not null
    and (expires_us, queue, status, seq) > (:expires_us, :queue, :status, :seq)
order by expires_us, queue, status, seq
limit 1 offset :size - 1
