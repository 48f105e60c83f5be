-- The first jobs of a queue and a task under a gate, save those whose deadline has passed.
select seq from packhorse_jobs
where
    blocked_by = :gate and queue = :queue and task = :task and +lane = 6
    and (deadline_us is null or deadline_us > :now)
    and (:heaviest is null or weight <= :heaviest)
order by rank, place
limit :count
