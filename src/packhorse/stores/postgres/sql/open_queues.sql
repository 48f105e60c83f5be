-- Those of these queues that are not paused.
select queue from unnest(%s::text[]) with ordinality as asked (queue, number)
where not exists (select 1 from {queues} where name = queue and paused)
order by number
