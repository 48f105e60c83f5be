-- name: exchange_attached
-- Put another text in the place of one in what is kept with a job.
update {attachments} set value = cast(replace(cast(value as text), :old, :new) as blob)
where
    seq = (select seq from {jobs} where id = :id)
    and instr(value, cast(:old as blob)) > 0

-- name: exchange_body
-- The same in a large payload.
update {bodies} set body = replace(body, :old, :new)
where job_seq = (select seq from {jobs} where id = :id)
