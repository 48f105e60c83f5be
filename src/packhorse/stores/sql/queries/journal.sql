-- name: journal_groups
-- Groups with lines, that of the oldest first, among so many of the oldest lines.
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
-- Those of some lines of a group that are there; they are locked until they are removed.
select id from {journal} as line
where group_name = :group and id {in_numbers :ids}
order by id
{lock line}

-- name: journal_remove
-- These lines are gone.
delete from {journal} where id {in_numbers ?}

-- name: journal_add
-- A line that comes from another store.
insert into {journal} (group_name, job, node, status, was, items, failed)
values (:group, :job, :node, :status, :was, :items, :failed)

-- name: counted_keep
-- Keep what a member counted when it ended: `number` -1 items, -2 those that failed.
insert into {attachments} (seq, name, number, value)
select job.seq, '', {number :number}, {bytes :value} from {jobs} as job
where job.seq = :seq and {member job} is not null
on conflict (seq, name, number) do update set value = excluded.value

-- name: counted_forget
-- An end was taken back, and what was counted with it.
delete from {attachments} where seq = ? and name = '' and number < 0

-- name: member_keep
-- Members whose groups are still there are looked at again later.
update {jobs} set expires_us = :now where seq {each :seq}
