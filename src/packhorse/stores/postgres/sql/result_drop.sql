-- The lifetime of results has passed; the records stay a while.
update {jobs} set result = null, expires_us = record_until_us where seq = any(%s::bigint[])
