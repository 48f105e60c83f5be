-- A worker goes, and its lease with it.
delete from packhorse_workers where worker = ?
