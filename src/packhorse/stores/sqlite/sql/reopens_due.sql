-- Gates that time has opened; those written down before the clock was set back are asked anew.
select gate from packhorse_reopens where at_us <= :now or since_us > :now
