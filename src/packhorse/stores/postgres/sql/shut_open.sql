-- Open a gate that was shut by hand.
delete from {shut} where gate = %s
