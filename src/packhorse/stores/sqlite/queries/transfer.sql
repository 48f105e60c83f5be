-- name: exchange_attached
-- Put another text in the place of one in what is kept with a job.
update {attachments} set value = cast(replace(cast(value as text), :old, :new) as blob)
where
    seq = (select seq from {jobs} where id = :id)
    and instr(value, cast(:old as blob)) > 0

-- name: exchange_job
-- The same in its row, which has no payload where that is large.
update {jobs} set
    payload = replace(payload, :old, :new),
    result = replace(result, :old, :new),
    error = replace(error, :old, :new)
where id = :id

-- name: exchange_payload
-- The same in a large payload.
update {bodies} set body = replace(body, :old, :new)
where job_seq = (select seq from {jobs} where id = :id)
