-- Set or clear a flag of a queue; no row when nothing changes.
insert into {queues} as queue (name, {flag})
select %(queue)s, %(on)s
where coalesce((select {flag} from {queues} where name = %(queue)s), false) <> %(on)s
on conflict (name) do update set {flag} = excluded.{flag}
