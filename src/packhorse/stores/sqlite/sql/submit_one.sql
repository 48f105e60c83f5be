-- Add one job that has no keys to a queue that has no say in it, if nobody stands in the intake. A
-- status of null is ignored, as a known id is: then no row was added, and the longer way tells why.
insert or ignore into packhorse_jobs (
    seq, id, task, queue, status, lane, rank, place, priority, due_us, created_us, updated_us,
    ready_us, timeout_us, tenant, trace_id, extra, payload
) values (
    1 + max(
        coalesce((select max(seq) from packhorse_jobs), 0),
        (select value from packhorse_sequence)
    ),
    ?1, ?2, ?3,
    case
        when exists (select 1 from packhorse_intake) or {queue_has_a_say} then null
        else ?4
    end,
    ?5, ?6,
    1 + max(
        coalesce((select max(seq) from packhorse_jobs), 0),
        (select value from packhorse_sequence)
    ),
    ?7, ?8, ?9, ?9, ?9, ?10, '', ?11, ?12, ?13
)
