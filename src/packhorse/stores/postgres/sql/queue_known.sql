-- Settings of a queue: declared, overridden, and those that hold.
select declared, overridden, settings from {queues} where name = %s
