-- Hand the chosen jobs to a worker. Rank and place stay, so that a release finds the old place.
update packhorse_jobs
set
    status = 2, lane = 4, fence = fence + 1, worker = :worker, alone = :alone,
    started_us = :now, updated_us = :now,
    hold_us = :now + coalesce(timeout_us, :default_timeout_us) + :grace_us
where seq in (select value from json_each(:seqs))
