-- Forget that gates were shut for a time.
delete from packhorse_shut where gate in (select value from json_each(?))
