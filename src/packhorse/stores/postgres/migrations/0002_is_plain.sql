-- Whether a queue and a task are plain, read after the lock was got: see `locking.py`. What `enter`
-- says in a row, for who submits one job and needs a yes or no. The lock is got by an expression, since
-- a statement would cost a query of its own.
create function {is_plain}(queue text, task text) returns boolean language plpgsql as $body$
begin
    if pg_advisory_xact_lock_shared({lock_key}('all')) is null then
        return null;
    end if;
    return (
        select queue <> all(known.queues) and task <> all(known.tasks) from {special} as known
    );
end
$body$;
