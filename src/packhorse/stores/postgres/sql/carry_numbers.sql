-- Numbers are given out behind this one from now on.
select setval('{numbers}', greatest(last_value, %s::bigint)) from {numbers}
