-- Running jobs that nobody holds rightfully any more.
select
    job.id, job.fence, job.crashes, job.lone_crashes, job.alone, job.worker,
    least(
        case
            when coalesce(worker.expires_us, 0) <= %(now)s then coalesce(worker.expires_us, 0)
            else job.hold_us
        end,
        job.hold_us
    ) as lost_us,
    job.options
from {jobs} as job
left join {workers} as worker on worker.worker = job.worker
where
    job.lane = 4 and (
        (
            coalesce(worker.expires_us, 0) <= %(now)s
            and job.worker = any(%(workers)s::text[])
        )
        or job.hold_us <= %(now)s
    )
order by job.seq
limit %(limit)s
