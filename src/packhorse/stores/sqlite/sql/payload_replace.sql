-- A waiting holder is given the payload of a newcomer.
update packhorse_jobs set payload = ?, updated_us = ? where seq = ?
