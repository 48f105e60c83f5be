-- name: gates_held
-- The gates under which jobs are held back, the first of them: from gate to gate. Lines of order are
-- passed over in one step; their texts begin alike.
with recursive held (gate) as (
    select min(blocked_by) from {jobs} where blocked_by is not null
    union all
    select (
        select min(job.blocked_by) from {jobs} as job
        where
            job.blocked_by
            > case when held.gate like 'order' || chr(31) || '%' then 'order ' else held.gate end
    )
    from held where held.gate is not null
)
select gate from held
where gate is not null and gate not like 'order' || chr(31) || '%'
limit ?

-- name: blocked_of
-- Jobs that are held back for another reason than their line of order, of which something is asked.
select seq, queue from {jobs}
where lane = {lane.blocked} and blocked_by is distinct from order_line and <condition> = ?

-- name: block_line
-- Hold back the rest of a line that shares all its gates, save those about to be handed over. An array
-- is made once; a subquery the planner might go through again for every job, taking the table for small.
-- A lane it cannot see keeps it from the index of ready jobs, which it might read from end to end.
update {jobs} set lane = {lane.blocked}, blocked_by = :gate
where seq = any(array(
    select seq from {jobs}
    where line = :line and lane = (select {lane.ready}) and seq <> all(:picked::bigint[])
    order by rank, place
    limit :limit
))

-- name: shut_until
-- Close a gate for a time; never make an earlier closing shorter.
insert into {shut} as known (gate, task, until_us) values (?, ?, ?)
on conflict (gate) do update set until_us = greatest(known.until_us, excluded.until_us)

-- name: line_behind
-- Of jobs that just became ready, hold back those that stand behind one of their line that is held
-- back, under the same gate; who comes before all of these asks the gate.
update {jobs} as job
set lane = {lane.blocked}, blocked_by = behind.gate
from (
    select own.seq, ahead.blocked_by as gate
    from {jobs} as own
    cross join lateral (
        select other.blocked_by from {jobs} as other
        where
            -- As a pair, so that the index of lanes, which knows no line, cannot serve it.
            (other.line, other.lane) between (own.line, {lane.blocked}) and (own.line, {lane.blocked})
            and other.line = own.line
            and (other.deadline_us is null or other.deadline_us > :now)
            and (other.rank, other.place) < (own.rank, own.place)
        order by other.lane, other.rank, other.place
        limit 1
    ) as ahead
    where
        own.seq = any(:seqs::bigint[]) and coalesce(own.lane, -1) = {lane.ready}
        and own.order_line is null
) as behind
where job.seq = any(:seqs::bigint[]) and job.seq = behind.seq

-- name: line_cap
-- Hold back under a gate what stands behind the first jobs of a line: see `block_line`.
update {jobs} set lane = {lane.blocked}, blocked_by = ?
where seq = any(array(
    select seq from {jobs} where line = ? and lane = (select {lane.ready})
    order by rank, place offset ?
))

-- name: order_advance
-- The heads of lines are ready, if they were held back only because they were not the heads.
update {jobs} as job set lane = {lane.ready}, blocked_by = null
where
    seq = any(array(
        select (
            select head.seq from {jobs} as head
            where head.order_line = asked.line order by head.line_no limit 1
        )
        from unnest(?::text[]) as asked (line)
    ))
    and coalesce(lane, -1) = {lane.blocked} and blocked_by is not distinct from order_line
returning job.queue

-- name: order_advance_after
-- As `order_advance`, of the lines that ended jobs have left.
update {jobs} as job set lane = {lane.ready}, blocked_by = null
where
    seq = any(array(
        select (
            select head.seq from {jobs} as head
            where head.order_line = :line || over.queue || :part || over.tenant || :part
                || over.ordering_key
            order by head.line_no limit 1
        )
        from {jobs} as over
        where
            over.<column> = any(:values::<type>[]) and over.ordering_key is not null
            and over.order_line is null and over.finished_us is not null
    ))
    and coalesce(lane, -1) = {lane.blocked} and blocked_by is not distinct from order_line
returning job.queue

-- name: order_lines
-- The lines of order that hold back jobs, the first of them: from line to line. As gates, their
-- texts begin alike.
with recursive held (line) as (
    select min(blocked_by) from {jobs}
    where blocked_by >= 'order' || chr(31) and blocked_by < 'order '
    union all
    select (
        select min(job.blocked_by) from {jobs} as job
        where job.blocked_by > held.line and job.blocked_by < 'order '
    )
    from held where held.line is not null
)
select line from held where line is not null limit ?

-- name: pass_keep
-- Remember the last passes of tenants.
insert into {passes} (queue, priority, tenant, pass)
select queue, priority, tenant, pass from json_populate_recordset(null::{passes}, ?::json)
on conflict (queue, priority, tenant) do update set pass = excluded.pass

-- name: pass_redeal
-- A queue begins to deal passes: what is ready gets them in the order it has.
with numbered as materialized (
    select seq, row_number() over (partition by priority order by place) - 1 as number
    from {jobs} where lane in ({lane.ready}, {lane.blocked}) and queue = :queue
)
update {jobs} as job
set rank = job.priority * :passes + least(numbered.number, :most) * :stride
from numbered
where job.seq = any(array(select seq from numbered)) and job.seq = numbered.seq
