-- Nobody waits behind a holder any more.
delete from packhorse_stash where seq = ?
