-- Time has opened a gate.
delete from packhorse_reopens where gate = ?
