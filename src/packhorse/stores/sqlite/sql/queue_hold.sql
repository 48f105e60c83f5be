-- Keep what is declared and overridden about a queue, and what holds.
insert into packhorse_queues (
    name, priority, dead_letter, limited, special, declared, overridden, settings
) values (
    :name, :priority, :dead_letter, :limited, :special, :declared, :overridden, :settings
)
on conflict (name) do update set
    priority = excluded.priority, dead_letter = excluded.dead_letter,
    limited = excluded.limited, special = excluded.special, declared = excluded.declared,
    overridden = excluded.overridden, settings = excluded.settings
