-- Since when the longest-waiting ready job of each queue and priority waits.
select queue, priority, min(ready_us) from {jobs}
where lane in (0, 1, 6)
group by queue, priority
