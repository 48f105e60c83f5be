-- SPDX-License-Identifier: MIT
-- What time it is: the server's, or the one a test gives. The same throughout a script.
if redis.replicate_commands then
  redis.replicate_commands() -- before Redis 7 a script that reads the time may write only so
end
local clock = {given = ARGV[1] ~= ''}
if clock.given then
  clock.now = tonumber(ARGV[1])
else
  local time = redis.call('TIME')
  clock.now = time[1] * 1000000 + time[2]
end
