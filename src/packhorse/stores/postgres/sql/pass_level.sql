-- The ranks of the first ready job of a priority and of the last that runs, and the highest pass
-- given there.
select
    (
        select min(first.rank) from (
            select min(rank) as rank from {jobs}
            where lane = 0 and queue = %(queue)s and rank >= %(low)s and rank < %(high)s
            union all
            select min(rank) from {jobs}
            where lane = 6 and queue = %(queue)s and rank >= %(low)s and rank < %(high)s
        ) as first
    ),
    (
        select max(rank) from {jobs}
        where lane = 4 and queue = %(queue)s and rank >= %(low)s and rank < %(high)s
    ),
    coalesce((
        select max(pass) from {passes} where queue = %(queue)s and priority = %(priority)s
    ), 0)
