-- A waiting holder is given the payload of a newcomer.
update {jobs} set payload = %s, updated_us = %s where seq = %s
