-- name: claim
-- Hand the chosen jobs to a worker. Rank and place stay, so that a release finds the old place.
update {jobs}
set
    status = {status.processing}, lane = {lane.held}, fence = fence + 1, worker = :worker,
    alone = :alone,
    started_us = :now, updated_us = :now,
    hold_us = :now + coalesce(timeout_us, :default_timeout_us) + :grace_us
where seq in (select value from json_each(:seqs))

-- name: claim_candidates_of_tasks
-- As `claim_candidates`, of the ready jobs of some tasks.
<next> order by rank, place limit :limit

-- name: claim_ready_of_task
-- The ready jobs of a queue and a task, after a rank and place. SQLite merges several of these in the
-- order of their index, and reads no further than it must.
select <columns> from {jobs}
where
    lane = {lane.ready} and queue = :queue and task = <task>
    and (rank, place) > (:rank, :after)
    and (deadline_us is null or deadline_us > :now)

-- name: claim_chosen
-- Chosen jobs in the order of choice, as one JSON document that decodes in one go
-- (fields in the order of packhorse.job.Job).
select
    json_group_array(json_array(
        id, task, queue, fence + 1, payload, priority, tenant, attempts, failures, crashes,
        lone_crashes, snoozes, timeout_us, deadline_us, coalesce(trace_id, replace(id, '-', '')),
        json_extract(extra, '$.upstream_request_id'),
        '' || json_extract(extra, '$.options'), ready_us,
        rate_key, concurrency_key
    ))
from (
    select
        job.id, task, queue, fence, payload, priority, tenant, attempts, failures, crashes,
        lone_crashes, snoozes, timeout_us, deadline_us, trace_id, extra, ready_us, rate_key,
        concurrency_key
    from json_each(:seqs) as chosen
    join {jobs} as job on job.seq = chosen.value
    order by chosen.key
)

-- name: claim_bodies
-- The large payloads of claimed jobs. Not through JSON, which would take longer than all else.
select job_seq, body from {bodies} where job_seq in (select value from json_each(:seqs))

-- name: promote
-- Make a due job ready, in its place; one that kept its place keeps its time too.
update {jobs}
set
    status = {status.queued}, lane = case when suspect then {lane.suspect} else {lane.ready} end,
    rank = :rank, place = :place, updated_us = :now_us,
    ready_us = case when kept_place is null then :now_us else ready_us end,
    kept_rank = null, kept_place = null
where seq = :seq

-- name: claim_numbers
-- The row numbers of the next jobs of a queue that this worker may run, as one JSON document.
select json_group_array(seq) from (<next>)
