-- One job, all that is known of it.
select {columns} from {jobs} where id = %s
