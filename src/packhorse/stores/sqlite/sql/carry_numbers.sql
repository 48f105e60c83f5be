-- Numbers are given out behind this one from now on.
update packhorse_sequence set value = max(value, ?)
