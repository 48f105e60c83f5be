-- Forget workers, unless they have come back.
delete from packhorse_workers
where worker in (select value from json_each(:workers)) and expires_us <= :latest
