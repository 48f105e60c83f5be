-- name: record_rows
-- The records of these ids, expired ones too; they are locked until they are changed.
select name, document, version, order_no, expires_us, counters, writers
from {records} as record where name {in_texts ?}
order by name
{lock record}

-- name: record
-- One record that has not expired.
select name, document, version, order_no, expires_us, counters, writers
from {records} where name = :name and (expires_us is null or expires_us > :now)

-- name: records_by_id
-- A page of records by id.
select name, document, version, order_no, expires_us, counters, writers
from {records}
where
    name > :after and name < :last
    and (expires_us is null or expires_us > :now)
order by name
limit :limit

-- name: records_by_order
-- A page of records of a kind by their order.
select name, document, version, order_no, expires_us, counters, writers
from {records}
where
    kind = :kind and order_no is not null and (order_no, name) > (:order, :after)
    and name > :first and name < :last
    and (expires_us is null or expires_us > :now)
order by order_no, name
limit :limit

-- name: records_expired
-- Some expired records.
select name from {records} where expires_us <= :now order by expires_us, name limit :limit

-- name: record_put
-- Insert or replace a record.
insert into {records} (
    name, kind, document, version, order_no, expires_us, counters, writers
) values (:name, :kind, :document, :version, :order_no, :expires_us, :counters, :writers)
on conflict (name) do update set
    document = excluded.document, version = excluded.version, order_no = excluded.order_no,
    expires_us = excluded.expires_us, counters = excluded.counters, writers = excluded.writers

-- name: records_remove
-- Remove records.
delete from {records} where name {in_texts ?}

-- name: records_highest
-- The highest version of removed records, and the mark of a copy to another store.
select
    coalesce(max(highest), 0),
    (select max(carried_to) from {copied}),
    (select max(at_us) from {copied})
from {removed_records}

-- name: records_highest_keep
-- Keep the highest version of removed records.
insert into {removed_records} (only_row, highest) values (1, ?)
on conflict (only_row) do update
set highest = {greatest}({removed_records}.highest, excluded.highest)
