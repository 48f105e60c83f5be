-- SPDX-License-Identifier: MIT
-- Keeps the newest progress of jobs whose fences are current.
-- Arguments: for each note: job id, fence, progress as JSON text. Answer: for each 1, or 0: stale.
-- needs: keys clock jobs
local verdicts = {}
for at = 2, #ARGV, 3 do
  local job = jobs.load(ARGV[at])
  local current = job and job.status == PROCESSING and job.fence == tonumber(ARGV[at + 1])
  if current then
    job.updated = clock.now
    jobs.save(job, 'o', ARGV[at + 2])
  end
  verdicts[#verdicts + 1] = current and 1 or 0
end
return verdicts
