-- Gates that were shut for a time that has passed.
select gate from packhorse_shut where until_us <= :now order by until_us limit :limit
