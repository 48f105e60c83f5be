-- Those who are waited for and have finished; asked for and forgotten at once.
delete from packhorse_interests
where seq in (
    select interest.seq from packhorse_interests as interest
    left join packhorse_jobs as job on job.seq = interest.seq
    where job.seq is null or job.finished_us is not null
)
returning (select id from packhorse_jobs where seq = packhorse_interests.seq)
