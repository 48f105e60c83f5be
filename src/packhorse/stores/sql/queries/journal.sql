-- name: journal_groups
-- Groups with lines among the oldest lines, that of the oldest line first.
select group_name
from (select id, group_name from {journal} order by id limit :looked_at) as oldest
group by group_name
order by min(id)
limit :limit

-- name: journal_lines
-- The oldest lines of a group.
select id, job, node, status, was, items, failed
from {journal} where group_name = :group
order by id
limit :limit

-- name: journal_there
-- Lock and return those of these lines of a group that exist.
select id from {journal} as line
where group_name = :group and id {in_numbers :ids}
order by id
{lock line}

-- name: journal_remove
-- Remove lines.
delete from {journal} where id {in_numbers ?}

-- name: journal_add
-- Add a line.
insert into {journal} (group_name, job, node, status, was, items, failed)
values (:group, :job, :node, :status, :was, :items, :failed)

-- name: counted_keep
-- Keep the counts of a member that ends: `number` -1 is items, -2 failed.
insert into {attachments} (seq, name, number, value)
select job.seq, '', {number :number}, {bytes :value} from {jobs} as job
where job.seq = :seq and {member job} is not null
on conflict (seq, name, number) do update set value = excluded.value

-- name: counted_forget
-- Remove the counts of an end that was taken back.
delete from {attachments} where seq = ? and name = '' and number < 0

-- name: member_keep
-- Keep members whose groups still exist a while longer.
update {jobs} set expires_us = :until where seq {in_numbers :seqs}
