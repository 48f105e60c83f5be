-- Due jobs of plain queues become ready, at most so many a queue, in (due, sequence) order; who kept a
-- place goes back to it, any other takes a new one.
with moment as materialized (select {now} as now_us),
entered as materialized (select queues from {enter}()),
due as materialized (
    select job.* from moment, entered, unnest(%(queues)s::text[]) as asked (queue)
    cross join lateral (
        select seq, rank, priority, kept_rank, kept_place, moment.now_us from {jobs}
        where lane = 3 and queue = asked.queue and rank <= moment.now_us
        order by rank, place
        limit %(limit)s
        for update skip locked
    ) as job
    where asked.queue <> all(entered.queues)
),
standing as materialized (
    select
        seq, now_us, kept_place is null as anew,
        coalesce(kept_rank, priority * %(passes)s) as rank,
        case when kept_place is null then nextval('{numbers}') else kept_place end as place
    from (select * from due order by rank, seq) as ordered
),
ready as (
    update {jobs} as job
    set
        status = 1, lane = case when job.suspect then 1 else 0 end, rank = standing.rank,
        place = standing.place, updated_us = standing.now_us,
        ready_us = case when standing.anew then standing.now_us else job.ready_us end,
        kept_rank = null, kept_place = null
    from standing
    where job.seq = standing.seq
    returning job.queue
)
select queue, count(*) from ready group by queue
