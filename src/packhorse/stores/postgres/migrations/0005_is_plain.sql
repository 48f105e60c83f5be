-- Whether a queue and a task are unconstrained; the queue '' in `special` stands for the whole store. One
-- expression instead of the row that `enter` returns makes the submit of a single job cheaper.
create or replace function {is_plain}(queue text, task text) returns boolean
language plpgsql as $body$
begin
    if pg_advisory_xact_lock_shared({lock_key}('all')) is null then
        return null;
    end if;
    return coalesce((
        select queue <> all(known.queues) and '' <> all(known.queues) and task <> all(known.tasks)
        from {special} as known
    ), true);
end
$body$;
