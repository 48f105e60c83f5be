-- Running jobs that nobody holds rightfully any more.
select
    job.id, job.fence, job.crashes, job.lone_crashes, job.alone, job.worker,
    min(
        case
            when coalesce(worker.expires_us, 0) <= :now then coalesce(worker.expires_us, 0)
            else job.hold_us
        end,
        job.hold_us
    ) as lost_us,
    json_extract(job.extra, '$.options')
from packhorse_jobs as job
left join packhorse_workers as worker on worker.worker = job.worker
where
    job.lane = 4 and (
        (
            coalesce(worker.expires_us, 0) <= :now
            and job.worker in (select value from json_each(:workers))
        )
        or job.hold_us <= :now
    )
order by job.seq
limit :limit
