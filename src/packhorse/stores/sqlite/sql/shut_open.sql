-- Open a gate that was shut by hand.
delete from packhorse_shut where gate = ?
