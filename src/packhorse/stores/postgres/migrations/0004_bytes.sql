-- Bounds by bytes: of a job that is counted, those of its payload. Others stay null, and pay nothing. What a
-- queue or the store holds is the sum over an index: it follows from the rows, so that it cannot be wrong, also
-- while workers of older releases end jobs.
alter table {jobs} add column bytes bigint;
create index {=bytes} on {jobs} (queue, bytes) where bytes is not null and lane <> 5;
