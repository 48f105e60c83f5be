-- Gates that somebody shut: by hand, or for a time that has not passed.
select gate, until_us from {shut} where until_us is null or until_us > %s
