-- Gates that time has opened.
select gate from packhorse_reopens where at_us <= ?
