-- Complete a batch in one go: those still processing under their fence and not to be cancelled.
-- Given as one JSON object of results by id: taking arrays apart costs as much as the update.
update packhorse_jobs
set
    status = 3, lane = null, settled = packhorse_jobs.fence * 16 + 1, suspect = 0, alone = 0,
    line = null, order_line = null, attempts = attempts + 1, result = done.value, error = null,
    finished_us = :now, updated_us = :now, hold_us = null,
    expires_us = :expires_us, record_until_us = :record_until_us,
    result_until_us = :result_until_us
from json_each(:results) as done
where
    packhorse_jobs.id = done.key and packhorse_jobs.fence = :fence
    and packhorse_jobs.status = 2 and packhorse_jobs.cancel_requested = 0
    and packhorse_jobs.seq not in (select seq from packhorse_keys)
