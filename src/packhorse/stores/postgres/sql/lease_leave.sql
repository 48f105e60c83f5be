-- A worker goes, and its lease with it.
delete from {workers} where worker = %s
