-- The log of a rate gate.
select log from packhorse_rates where gate = ?
