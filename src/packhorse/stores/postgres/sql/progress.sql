-- Keep the newest progress of a job that is still this owner's.
update {jobs} set progress = %(progress)s, updated_us = %(now)s
where id = %(id)s and fence = %(fence)s and status = 2
