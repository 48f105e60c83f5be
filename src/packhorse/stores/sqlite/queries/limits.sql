-- name: gates_held
-- The first gates that block jobs, without lines of order: goes from gate to gate.
with recursive held (gate) as (
    select min(blocked_by) from {jobs} where blocked_by is not null
    union all
    select (
        select min(job.blocked_by) from {jobs} as job
        where job.blocked_by > held.gate
    )
    from held where held.gate is not null
    limit ?
)
select gate from held where gate is not null

-- name: blocked_of
-- Jobs that a gate blocks, not their line of order, with a condition.
select seq, queue from {jobs}
where lane = {lane.blocked} and blocked_by is not null and <condition> = ?

-- name: block_line
-- Block the rest of a line that shares all its gates, except the jobs just picked.
update {jobs} set lane = {lane.blocked}, blocked_by = :gate
where seq in (
    select seq from {jobs}
    where line = :line and lane = {lane.ready} and seq not in (select value from json_each(:picked))
    order by rank, place
    limit :limit
)

-- name: shut_until
-- Close a gate until an instant; never shorten an earlier closing.
insert into {shut} (gate, until_us) values (?, ?)
on conflict (gate) do update set until_us = max(until_us, excluded.until_us)

-- name: line_behind
-- Block jobs that just became ready behind a blocked job of their line, under the same gate; a job
-- that ranks before all of these is checked by the claim.
update {jobs}
set lane = {lane.blocked}, blocked_by = (
    select ahead.blocked_by from {jobs} as ahead
    where
        ahead.line = {jobs}.line and ahead.lane = {lane.blocked}
        and (ahead.deadline_us is null or ahead.deadline_us > :now)
        and (ahead.rank, ahead.place) < ({jobs}.rank, {jobs}.place)
    limit 1
)
where
    seq in (select value from json_each(:seqs)) and lane = {lane.ready} and line is not null
    and order_line is null
    and exists (
        select 1 from {jobs} as ahead
        where
            ahead.line = {jobs}.line and ahead.lane = {lane.blocked}
            and (ahead.deadline_us is null or ahead.deadline_us > :now)
            and (ahead.rank, ahead.place) < ({jobs}.rank, {jobs}.place)
    )

-- name: line_cap
-- Block all but the first jobs of a line under a gate.
update {jobs} set lane = {lane.blocked}, blocked_by = ?
where seq in (
    select seq from {jobs} where line = ? and lane = {lane.ready} order by rank, place
    limit -1 offset ?
)

-- name: order_advance
-- Make the heads of lines ready, if only their line blocked them. The plus signs keep the planner
-- from scanning all blocked jobs.
update {jobs} set lane = {lane.ready}
where
    seq in (
        select (
            select head.seq from {jobs} as head
            where head.order_line = line.value order by head.line_no limit 1
        )
        from json_each(?) as line
    )
    and +lane = {lane.blocked} and +blocked_by is null
returning queue

-- name: order_advance_after
-- Make the next jobs ready in the lines of order that ended jobs have left; see `order_advance`.
update {jobs} set lane = {lane.ready}
where
    seq in (
        select (
            select head.seq from {jobs} as head
            where head.order_line = :line || over.queue || :part || over.tenant || :part
                || over.ordering_key
            order by head.line_no limit 1
        )
        from json_each(:values) as asked
        join {jobs} as over on over.<column> = asked.value
        where
            over.ordering_key is not null and over.order_line is null
            and over.finished_us is not null
    )
    and +lane = {lane.blocked} and +blocked_by is null
returning queue

-- name: order_lines
-- The first lines of order: goes from line to line.
with recursive known (line) as (
    select min(order_line) from {jobs} where order_line is not null
    union all
    select (
        select min(job.order_line) from {jobs} as job
        where job.order_line > known.line
    )
    from known where known.line is not null
    limit ?
)
select line from known where line is not null

-- name: pass_keep
-- Keep a tenant's last pass.
insert into {passes} (queue, priority, tenant, pass)
values (:queue, :priority, :tenant, :pass)
on conflict (queue, priority, tenant) do update set pass = excluded.pass

-- name: pass_redeal
-- Give passes to the ready jobs of a queue that begins to deal them, in their order.
update {jobs}
set rank = {jobs}.priority * :passes + min(numbered.number, :most) * :stride
from (
    select seq, row_number() over (partition by priority order by place) - 1 as number
    from {jobs} where lane in ({lane.ready}, {lane.blocked}) and queue = :queue
) as numbered
where {jobs}.seq = numbered.seq
