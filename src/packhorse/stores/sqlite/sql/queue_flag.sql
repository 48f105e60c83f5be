-- Set or clear a flag of a queue; no row when nothing changes.
insert into packhorse_queues (name, {flag})
select :queue, :on
where coalesce((select {flag} from packhorse_queues where name = :queue), 0) <> :on
on conflict (name) do update set {flag} = excluded.{flag}
