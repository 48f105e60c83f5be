-- Hand the chosen jobs to a worker, in the order of choice.
with handed as (
    update {jobs} as job
    set
        status = 2, lane = 4, blocked_by = null, fence = fence + 1, worker = %(worker)s,
        alone = %(alone)s, started_us = %(now)s, updated_us = %(now)s,
        hold_us = %(now)s + coalesce(timeout_us, %(default_timeout_us)s) + %(grace_us)s
    from unnest(%(seqs)s::bigint[]) with ordinality as chosen (seq, number)
    where job.seq = any(%(seqs)s::bigint[]) and job.seq = chosen.seq
    returning chosen.number, 0, {handed_columns}
)
select * from handed order by number
