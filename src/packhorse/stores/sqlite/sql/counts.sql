-- Jobs per queue and status, from the two indexes that between them hold every job.
select queue, status, count(*) from packhorse_jobs
where lane in (0, 1, 2, 3, 4, 6)
group by queue, status
union all
select queue, status, count(*) from packhorse_jobs indexed by packhorse_finished
where finished_us is not null
group by queue, status
order by 1, 2
