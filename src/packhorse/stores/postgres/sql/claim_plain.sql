-- Hand the next ready jobs of plain queues to a worker, queue by queue in the order of service, each
-- from the floors given. Nothing is handed over if its lease is gone, if one of the queues is not
-- plain, or if a job is due that must become ready first. The first row says how the queues stand, as
-- JSON in the place of a payload; the caller sorts the others.
with moment as materialized (select {now} as now_us),
entered as materialized (select * from {enter}()),
asked as materialized (
    select
        asked.queue, asked.queue = any(entered.queues) as special,
        row_number() over (order by coalesce(queue.priority, 0), asked.number) as number,
        (select min(rank) from {jobs} where lane = 3 and queue = asked.queue) as due_us,
        exists (
            select 1 from {jobs}
            where
                lane = 1 and queue = asked.queue and coalesce(deadline_us > moment.now_us, true)
                and (%(any_task)s or task = any(%(tasks)s::text[]))
        ) as suspects
    from moment, entered, unnest(%(queues)s::text[]) with ordinality as asked (queue, number)
    left join {queues} as queue on queue.name = asked.queue
    where not coalesce(queue.paused, false)
),
survey as materialized (
    select
        moment.now_us, (select expires_us from {workers} where worker = %(worker)s) as lease_us,
        min(due_us) as due_us, coalesce(bool_or(suspects), false) as suspects,
        coalesce(bool_or(special), false) as special,
        coalesce(array_agg(queue order by number) filter (where queue is not null), '{}') as queues
    from moment left join asked on true group by moment.now_us
),
picked as materialized (
    select job.* from (
        select floor.*, asked.number, survey.now_us from survey, asked, unnest(
            %(floor_queues)s::text[], %(lows)s::bigint[], %(places)s::bigint[], %(highs)s::bigint[]
        ) as floor (queue, low, place, high)
        where
            floor.queue = asked.queue and survey.lease_us > survey.now_us and not survey.special
            and (%(late)s or coalesce(survey.due_us > survey.now_us, true))
        order by asked.number, floor.low
    ) as range
    cross join lateral (
        select job.ctid as row from {jobs} as job
        where
            job.lane = 0 and job.queue = range.queue
            and (job.rank, job.place) > (range.low, range.place) and job.rank < range.high
            and (job.deadline_us is null or job.deadline_us > range.now_us)
            and (%(any_task)s or job.task = any(%(tasks)s::text[]))
        order by job.rank, job.place limit %(limit)s for update of job skip locked
    ) as job limit %(limit)s
),
handed as (
    update {jobs} as job set
        status = 2, lane = 4, fence = fence + 1, worker = %(worker)s, alone = false,
        started_us = survey.now_us, updated_us = survey.now_us,
        hold_us = survey.now_us + coalesce(timeout_us, %(default_timeout_us)s) + %(grace_us)s
    from survey
    where job.ctid = any(array(select row from picked))
    returning {handed_columns}, job.rank, job.place
)
select {survey_columns}, null::bigint, null::bigint from entered, survey
union all select * from handed
