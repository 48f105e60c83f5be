-- Put one job down that has no keys and whose id is new, for a queue that has no say in it. A task
-- of null is ignored: then no row was added, and the longer way tells why. What all jobs of a task
-- share may stand in the statement itself, since most jobs share all but their ids and arguments.
insert or ignore into packhorse_intake (
    id, task, queue, priority, timeout_us, created_us, due_us, trace_id, extra, payload
) values (
    ?1,
    case
        when {queue_has_a_say} then null
        else {task}
    end,
    {queue}, {priority}, {timeout_us}, ?2, {due_us}, {trace_id}, {extra}, ?3
)
