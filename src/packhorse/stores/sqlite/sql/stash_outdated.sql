-- Whoever waited behind the last holder of a unique key is outdated.
delete from packhorse_stash
where seq = (
    select seq from packhorse_keys
    where kind = 'unique' and tenant = ? and task = ? and key = ?
)
