-- The result's lifetime has passed; the record stays a while.
update packhorse_jobs set result = null, expires_us = record_until_us where seq = ?
