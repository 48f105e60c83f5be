-- name: exchange_attached
-- Put another text in the place of one in what is kept with a job.
update {attachments}
set value = convert_to(replace(convert_from(value, 'UTF8'), :old, :new), 'UTF8')
where
    seq = (select seq from {jobs} where id = :id)
    and position(convert_to(:old, 'UTF8') in value) > 0

-- name: exchange_payload
-- The same in its payload.
update {jobs} set payload = replace(payload, :old, :new) where id = :id
