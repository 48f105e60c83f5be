-- Put one job down that has no keys and whose id is new, for a queue that has no say in it. A task
-- of null is ignored: then no row was added, and the longer way tells why. The code says what else
-- it has, since most jobs have nothing.
insert or ignore into packhorse_intake (
    id, task, queue, priority, timeout_us, created_us, due_us, trace_id, extra, payload
) values (
    ?1,
    case
        when {queue_has_a_say} then null
        else ?2
    end,
    ?3, ?4, ?5, ?6, {due}, {trace_id}, {extra}, ?7
)
