-- Forget that gates were shut for a time.
delete from {shut} where gate = any(%s::text[])
