-- The log of a rate gate.
select log from {rates} where gate = %s
