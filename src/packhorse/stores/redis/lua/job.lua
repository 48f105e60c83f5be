-- SPDX-License-Identifier: MIT
-- Reads one job: the instant, and the fields asked for.
-- needs: keys clock
return {clock.now, redis.call('HMGET', keys.job(ARGV[2]), unpack(ARGV, 3))}
