-- Settings of a queue: declared, overridden, and those that hold.
select declared, overridden, settings from packhorse_queues where name = ?
