-- Take some numbers behind all that were ever given out.
select nextval('{numbers}') from generate_series(1, %s)
