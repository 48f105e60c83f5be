-- A job that nobody holds ends here.
update packhorse_jobs
set
    status = :status, lane = :lane, rank = case when :lane = 5 then seq else rank end,
    kept_rank = null, kept_place = null, parked_us = null, finished_us = :now, updated_us = :now,
    expires_us = :expires_us, record_until_us = :record_until_us, result_until_us = null,
    dead_reason = :dead_reason, blocked_by = null, line = null,
    order_line = case
        when :lane = 5 and exists (
            select 1 from packhorse_queues
            where name = packhorse_jobs.queue and json_extract(settings, '$.on_dead') = 'hold'
        ) then order_line
    end,
    dead_letter = case
        when :lane = 5 then (
            select dead_letter from packhorse_queues where name = packhorse_jobs.queue
        )
    end
where seq = :seq
