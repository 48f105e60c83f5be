-- The last number given out as sequence or place.
select
    max(
        coalesce((select max(seq) from packhorse_jobs), 0),
        (select value from packhorse_sequence)
    )
