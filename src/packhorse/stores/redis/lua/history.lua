-- SPDX-License-Identifier: MIT
-- Reads the lines of a job's history that are kept: the first ones and the last ones.
-- needs: keys jobs
local id, each_end = ARGV[2], tonumber(ARGV[3])
local job = jobs.load(id)
if not job or job.attempts == 0 then
  return {}
end
local names = {}
for attempt = 1, math.min(job.attempts, each_end) do
  names[#names + 1] = 'a' .. attempt
end
for attempt = math.max(each_end, job.attempts - each_end) + 1, job.attempts do
  names[#names + 1] = 'a' .. keys.number(attempt)
end
return redis.call('HMGET', keys.job(id), unpack(names))
