-- name: claim_batch
-- Hand the next jobs of a queue that this worker may run to it. Rank and place stay, so that a
-- release finds the old place.
with picked as materialized (<next>),
handed as (
    update {jobs} as job
    set
        status = {status.processing}, lane = {lane.held}, blocked_by = null, fence = fence + 1,
        worker = :worker, alone = :alone, started_us = :now, updated_us = :now,
        hold_us = :now + coalesce(timeout_us, :default_timeout_us) + :grace_us
    where job.ctid = any(array(select row from picked))
    returning job.rank, job.place, <handed_columns>
)
select * from handed order by rank, place

-- name: claim_next_locked
-- The first of these jobs, locked.
<next> order by rank, place limit :limit for update of job skip locked

-- name: claim_next_of_tasks
-- As `claim_next_locked`, of the ready jobs of some tasks: no more are read and locked than are handed over.
select job.row from (
    select * from (<next>) as ready order by rank, place limit (select :window::bigint)
) as candidate cross join lateral (<lock>) as job limit :limit

-- name: claim_candidates_of_tasks
-- As `claim_candidates`, of the ready jobs of some tasks.
select * from (<next>) as ready order by rank, place limit (select :limit::bigint)

-- name: claim_ready_of_task
-- The ready jobs of a queue and a task, after a rank and place. Merged in the order of their index and
-- read no further than needed: only the index by task has jobs whose lane is below 1 in order, and of a
-- number it cannot see the planner thinks that few rows are wanted, so that it sorts nothing.
(select <columns> from {jobs}
where lane < {lane.suspect} and queue = :queue and task = <task>
    and (rank, place) > (:rank, :after) and (deadline_us is null or deadline_us > :now)
order by rank, place limit (select :window::bigint))

-- name: claim_lock
-- A candidate, locked, unless another claim has locked it or has taken it meanwhile.
select job.ctid as row from {jobs} as job
where job.ctid = candidate.row and job.lane = {lane.ready}
for update of job skip locked

-- name: claim_chosen
-- The jobs that a claim has chosen, locked.
select ctid as row from {jobs} where seq = any(:seqs::bigint[]) for update

-- name: claim_fast
-- Hand the next ready jobs of unconstrained queues to a worker, queue by queue in the order of service, each
-- from the floors given, and past no more jobs than the window is wide. Nothing is handed over if its lease is
-- gone, if one of the queues is not unconstrained, or if a job is due that must become ready first. The first
-- row is the state of the queues, as JSON in the column of the payload; the caller sorts the others.
with moment as materialized (select {now} as now_us),
entered as materialized (select * from {enter}()),
asked as materialized (
    select
        asked.queue, array[asked.queue, 'paused ' || asked.queue] && entered.queues as special,
        row_number() over (order by coalesce(queue.priority, 0), asked.number) as number,
        (select min(rank) from {jobs} where lane = {lane.waiting} and queue = asked.queue) as due_us,
        exists (
            select 1 from {jobs}
            where
                lane = {lane.suspect} and queue = asked.queue
                and coalesce(deadline_us > moment.now_us, true) and (:any_task or task = any(:tasks::text[]))
        ) as suspects
    from moment, entered, unnest(:queues::text[]) with ordinality as asked (queue, number)
    left join {queues} as queue on queue.name = asked.queue
    where not coalesce(queue.paused, false)
),
survey as materialized (
    select
        moment.now_us, (select expires_us from {workers} where worker = :worker) as lease_us,
        min(due_us) as due_us, coalesce(bool_or(suspects), false) as suspects,
        coalesce(bool_or(special), false) as special,
        coalesce(array_agg(queue order by number) filter (where queue is not null), '{}') as queues
    from moment left join asked on true group by moment.now_us
),
candidates as materialized (
    select job.* from (
        select floor.*, asked.number, survey.now_us from survey, asked, unnest(
            :floor_queues::text[], :lows::bigint[], :places::bigint[], :highs::bigint[],
            :ends::bigint[]
        ) as floor (queue, low, place, high, until)
        where
            floor.queue = asked.queue and survey.lease_us > survey.now_us and not survey.special
            and (:late or coalesce(survey.due_us > survey.now_us, true))
        order by asked.number, floor.low, floor.place
    ) as range
    cross join lateral (
        select * from (<next>) as ready order by rank, place limit (select :window::bigint)
    ) as job
    limit :window::bigint
),
picked as materialized (
    select job.row from candidates as candidate cross join lateral (<lock>) as job
    where candidate.known limit :limit
),
handed as (
    update {jobs} as job set
        status = {status.processing}, lane = {lane.held}, fence = fence + 1, worker = :worker,
        alone = false, started_us = survey.now_us, updated_us = survey.now_us,
        hold_us = survey.now_us + coalesce(timeout_us, :default_timeout_us) + :grace_us
    from survey
    where job.ctid = any(array(select row from picked))
    returning <handed_columns>, job.rank, job.place
)
select <survey_columns>, null::bigint, null::bigint from entered, survey
union all select * from handed

-- name: claim_range
-- The ready jobs of a range, and whether this worker knows their tasks.
select job.ctid as row, :any_task or job.task = any(:tasks::text[]) as known, job.rank, job.place
from {jobs} as job where job.lane = {lane.ready} and job.queue = range.queue
    and (job.rank, job.place) > (range.low, range.place)
    and (job.rank, job.place) <= (range.high, range.until)
    and (job.deadline_us is null or job.deadline_us > range.now_us)

-- name: claim_range_of_task
-- The ready jobs of a range and a task: see `claim_ready_of_task`.
(select job.ctid as row, true as known, job.rank, job.place from {jobs} as job
where job.lane < {lane.suspect} and job.queue = range.queue and job.task = <task>
    and (job.rank, job.place) > (range.low, range.place)
    and (job.rank, job.place) <= (range.high, range.until)
    and (job.deadline_us is null or job.deadline_us > range.now_us)
order by job.rank, job.place limit (select :window::bigint))

-- name: promote
-- Make due jobs ready, in their places; one that kept its place has been ready before.
with due as materialized (
    select * from json_to_recordset(?::json) as due (seq bigint, rank bigint, place bigint, now_us bigint)
)
update {jobs} as job
set
    status = {status.queued},
    lane = case when job.suspect then {lane.suspect} else {lane.ready} end,
    rank = due.rank, place = due.place, updated_us = due.now_us,
    ready_us = case when job.kept_place is null then due.now_us else job.ready_us end,
    kept_rank = null, kept_place = null
from due
where job.seq = any(array(select seq from due)) and job.seq = due.seq

-- name: promote_fast
-- Make due jobs of unconstrained queues ready, at most so many per queue, in (due, sequence) order. A job that
-- kept its place returns to it, any other takes a new one. Say whether a job returned.
with moment as materialized (select {now} as now_us),
entered as materialized (select queues from {enter}()),
due as materialized (
    select job.* from moment, entered, unnest(:queues::text[]) as asked (queue)
    cross join lateral (
        select seq, rank, priority, kept_rank, kept_place, moment.now_us from {jobs}
        where lane = {lane.waiting} and queue = asked.queue and rank <= moment.now_us
        order by rank, place
        limit :limit
        for update skip locked
    ) as job
    where asked.queue <> all(entered.queues)
),
standing as materialized (
    select
        seq, now_us, kept_place is null as fresh,
        coalesce(kept_rank, priority * :passes) as rank,
        case when kept_place is null then nextval('{numbers}') else kept_place end as place
    from (select * from due order by rank, seq) as ordered
),
ready as (
    update {jobs} as job
    set
        status = {status.queued},
        lane = case when job.suspect then {lane.suspect} else {lane.ready} end, rank = standing.rank,
        place = standing.place, updated_us = standing.now_us,
        ready_us = case when standing.fresh then standing.now_us else job.ready_us end,
        kept_rank = null, kept_place = null
    from standing
    where job.seq = any(array(select seq from standing)) and job.seq = standing.seq
    returning standing.fresh
)
select coalesce(bool_or(not fresh), false) from ready
