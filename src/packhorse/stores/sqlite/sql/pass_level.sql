-- The ranks of the first ready job of a priority and of the last that runs, and the highest pass
-- given there.
select
    (
        select min(first.rank) from (
            select min(rank) as rank from packhorse_jobs
            where lane = 0 and queue = :queue and rank >= :low and rank < :high
            union all
            select min(rank) from packhorse_jobs
            where lane = 6 and queue = :queue and rank >= :low and rank < :high
        ) as first
    ),
    (
        select max(rank) from packhorse_jobs
        where lane = 4 and queue = :queue and rank >= :low and rank < :high
    ),
    coalesce((
        select max(pass) from packhorse_passes where queue = :queue and priority = :priority
    ), 0)
