-- Status of the jobs that are there, or were before, among these ids.
select id, status from packhorse_jobs
where id in (select value from json_each(:ids)) and (:up_to is null or seq <= :up_to)
