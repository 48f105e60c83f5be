-- Gates that were shut for a time that has passed.
select gate from {shut} where until_us <= %(now)s order by until_us limit %(limit)s
