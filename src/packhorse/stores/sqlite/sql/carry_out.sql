-- Jobs that wait or are dead, with all that is known of them, in order of submission.
select
    {columns}, rank, place, kept_rank, kept_place, ready_us, suspect, expires_us,
    order_line, line_no,
    exists (
        select 1 from packhorse_keys as taken where taken.seq = job.seq and taken.kind = 'unique'
    ),
    exists (
        select 1 from packhorse_keys as taken
        where taken.seq = job.seq and taken.kind = 'idempotency'
    ),
    (select stash.job from packhorse_stash as stash where stash.seq = job.seq)
from packhorse_jobs as job
where status in (0, 1, 4, 6, 7) and {condition}
order by seq
limit :limit
