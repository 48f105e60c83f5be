-- SPDX-License-Identifier: MIT
-- Reads the workers known, and the instant.
-- needs: keys clock
return {clock.now, redis.call('HVALS', tag .. ':workers')}
