-- name: exchange_attached
-- Replace a text in the attachments of a job.
update {attachments} set value = cast(replace(cast(value as text), :old, :new) as blob)
where
    seq = (select seq from {jobs} where id = :id)
    and instr(value, cast(:old as blob)) > 0

-- name: exchange_job
-- Replace a text in its row, whose payload is empty if it is large.
update {jobs} set
    payload = replace(payload, :old, :new),
    result = replace(result, :old, :new),
    error = replace(error, :old, :new)
where id = :id

-- name: exchange_payload
-- Replace a text in a large payload.
update {bodies} set body = replace(body, :old, :new)
where job_seq = (select seq from {jobs} where id = :id)
