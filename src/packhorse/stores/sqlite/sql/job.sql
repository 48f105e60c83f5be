-- One job, all that is known of it.
select {columns} from packhorse_jobs where id = ?
