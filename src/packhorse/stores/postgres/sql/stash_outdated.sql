-- Whoever waited behind the last holder of a unique key is outdated.
delete from {stash}
where seq = (
    select seq from {keys}
    where kind = 'unique' and tenant = %s and task = %s and key = %s
)
