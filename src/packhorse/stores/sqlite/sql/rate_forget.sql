-- Forget the log of a rate gate, unless it has changed since it was read.
delete from packhorse_rates where gate = :gate and log = :log
