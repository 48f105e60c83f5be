-- Time has opened a gate.
delete from {reopens} where gate = %s
