-- Bounds by bytes: of a job that is counted, those of its payload. Others stay null, and pay nothing. What a
-- queue or the store holds is the sum over an index: it follows from the rows, so that it cannot be wrong, also
-- while workers of older releases end jobs.
alter table packhorse_jobs add column bytes integer;
create index packhorse_bytes on packhorse_jobs (queue, bytes, lane) where bytes is not null and lane <> 5;
