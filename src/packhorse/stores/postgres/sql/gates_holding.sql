-- Those of these gates that hold jobs back.
select gate from unnest(%s::text[]) as gate
where exists (select 1 from {jobs} where blocked_by = gate)
