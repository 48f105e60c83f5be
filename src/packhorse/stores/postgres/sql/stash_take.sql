-- The jobs that waited behind these, if these still hold their keys.
delete from {stash}
where
    seq = any(%s::bigint[])
    and seq in (select seq from {keys} where kind = 'unique')
returning seq, job
