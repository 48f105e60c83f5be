-- What waits for attempts to end: jobs that are held back, by their lines of order or by other gates;
-- jobs behind the holders of their keys; workers or producers that wait for room; those who wait for
-- a job.
select
    exists (select 1 from packhorse_jobs where lane = 6),
    exists (select 1 from packhorse_jobs where blocked_by is not null),
    exists (select 1 from packhorse_stash),
    exists (select 1 from packhorse_queues where limited = 1),
    exists (select 1 from packhorse_interests)
