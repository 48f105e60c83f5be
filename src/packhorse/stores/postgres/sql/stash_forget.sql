-- Nobody waits behind a holder any more.
delete from {stash} where seq = %s
