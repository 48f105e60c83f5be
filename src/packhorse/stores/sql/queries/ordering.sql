-- name: line_rejoin
-- Put a job that had finished at the end of its line.
update {jobs} set line = ?, order_line = ?, line_no = ? where seq = ?

-- name: lines_held
-- The lines that these finished jobs still hold.
select queue, task, tenant, ordering_key, concurrency_key, rate_key from {jobs}
where seq {in_numbers ?} and coalesce(order_line, '') <> ''

-- name: order_first
-- The head of a line, and its tenant.
select id, tenant from {jobs} where order_line = ? order by line_no limit 1

-- name: pass_lasts
-- The last passes of some tenants.
select tenant, pass from {passes}
where
    queue = :queue and priority = :priority
    and tenant {in_texts :tenants}

-- name: pass_level
-- The ranks of the first ready and the last running job of a priority, and the highest pass
-- there.
select
    (
        select min(first.rank) from (
            select min(rank) as rank from {jobs}
            where lane = {lane.ready} and queue = :queue and rank >= :low and rank < :high
            union all
            select min(rank) from {jobs}
            where lane = {lane.blocked} and queue = :queue and rank >= :low and rank < :high
        ) as first
    ),
    (
        select max(rank) from {jobs}
        where lane = {lane.held} and queue = :queue and rank >= :low and rank < :high
    ),
    coalesce((
        select max(pass) from {passes} where queue = :queue and priority = :priority
    ), 0)

-- name: pass_redealt
-- Keep the last pass of jobs without a tenant, which had the queue alone until now.
insert into {passes} (queue, priority, tenant, pass)
select queue, priority, '', {least}(count(*) - 1, :most) * :stride from {jobs}
where lane in ({lane.ready}, {lane.blocked}) and queue = :queue
group by queue, priority

-- name: order_behind
-- Block ready jobs that are not the heads of their lines of order.
update {jobs} as job
set lane = {lane.blocked}{blocked_by_line}
where
    <chosen> and {unindexed lane} = {lane.ready}
    and exists (
        select 1 from {jobs} as head
        where head.order_line = job.order_line and head.line_no < job.line_no
        {apart}
    )
