-- Gates that time has opened; those written down before the clock was set back are asked anew.
select gate from {reopens} where at_us <= %(now)s or since_us > %(now)s
