-- Remove jobs with all that belongs to them.
with gone as (delete from {jobs} where seq = any(%(seqs)s::bigint[]) returning seq),
attempts as (delete from {attempts} where seq = any(%(seqs)s::bigint[])),
tags as (delete from {tags} where seq = any(%(seqs)s::bigint[])),
keys as (delete from {keys} where seq = any(%(seqs)s::bigint[])),
stash as (delete from {stash} where seq = any(%(seqs)s::bigint[]))
select count(*) from gone
