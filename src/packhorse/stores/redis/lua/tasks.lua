-- SPDX-License-Identifier: MIT
-- Reads the limits of every task that has some.
-- needs: keys
return redis.call('HGETALL', tag .. ':tasks')
