-- The jobs that waited behind these, if these still hold their keys.
delete from packhorse_stash
where
    seq in (select value from json_each(?))
    and seq in (select seq from packhorse_keys where kind = 'unique')
returning seq, job
