-- Finished jobs that are kept for ever, per queue and status, in the order of the index.
select queue, status, count(*) from packhorse_jobs indexed by packhorse_finished
where finished_us is not null and expires_us is null
group by queue, status
