-- Of jobs that just became ready, hold back those that stand behind one of their line that is held
-- back, under the same gate; who comes before all of these asks the gate.
update packhorse_jobs
set lane = 6, blocked_by = (
    select ahead.blocked_by from packhorse_jobs as ahead
    where
        ahead.line = packhorse_jobs.line and ahead.lane = 6
        and (ahead.deadline_us is null or ahead.deadline_us > :now)
        and (ahead.rank, ahead.place) < (packhorse_jobs.rank, packhorse_jobs.place)
    limit 1
)
where
    seq in (select value from json_each(:seqs)) and lane = 0 and line is not null
    and order_line is null
    and exists (
        select 1 from packhorse_jobs as ahead
        where
            ahead.line = packhorse_jobs.line and ahead.lane = 6
            and (ahead.deadline_us is null or ahead.deadline_us > :now)
            and (ahead.rank, ahead.place) < (packhorse_jobs.rank, packhorse_jobs.place)
    )
