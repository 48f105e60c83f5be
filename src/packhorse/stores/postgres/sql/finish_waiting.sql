-- A job that nobody holds ends here.
update {jobs} as job
set
    status = %(status)s, lane = %(lane)s::bigint,
    rank = case when %(lane)s::bigint = 5 then seq else rank end,
    kept_rank = null, kept_place = null, parked_us = null, finished_us = %(now)s,
    updated_us = %(now)s, expires_us = %(expires_us)s, record_until_us = %(record_until_us)s,
    result_until_us = null, dead_reason = %(dead_reason)s, blocked_by = null, line = null,
    order_line = case
        when %(lane)s::bigint = 5 and exists (
            select 1 from {queues}
            where name = job.queue and settings::json ->> 'on_dead' = 'hold'
        ) then order_line
    end,
    dead_letter = case
        when %(lane)s::bigint = 5 then (select dead_letter from {queues} where name = job.queue)
    end
where seq = %(seq)s
