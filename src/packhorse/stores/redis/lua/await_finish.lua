-- SPDX-License-Identifier: MIT
-- Writes down that somebody waits for a job, then reads it.
-- Arguments: job id. Answer: the store's clock, then the fields of `rows.RECORD_FIELDS`; or nothing.
-- needs: keys clock jobs
local job = jobs.load(ARGV[2])
if not job then
  return false
end
-- Interest in a job that has finished would never be answered, and never be forgotten.
local awaited = not TERMINAL[job.status] or nil
if awaited ~= job.awaited then
  job.awaited = awaited
  jobs.save(job)
end
return {clock.now, redis.call('HMGET', keys.job(ARGV[2]), 's', 'd', 'p', 'r', 'e', 'o', 'b')}
