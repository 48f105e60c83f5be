-- SPDX-License-Identifier: MIT
-- Writes settlements whose fences are current.
-- Arguments: for each settlement: job id, fence, result text, and the rest as a MessagePack array
-- in the order of `named` below, which many of them share.
-- Answer: for each 0 applied, 1 cancelled, 2 expired, 3 stale.
-- needs: keys clock wakes jobs queues sigs pending lines index places holders entering endings
local PARTS = 4
local RESCUED_KIND = 8
local known = {}

local function named(text)
  local s = cmsgpack.unpack(text)
  return {
    kind = s[1], status = s[2], delay = s[3], keep_place = s[4], ended = s[5], failures = s[6],
    crashes = s[7], lone_crashes = s[8], snoozes = s[9], releases = s[10], has_result = s[11],
    error = s[12] or nil, dead_reason = s[13] or nil, keep = s[14], result_keep = s[15],
    dead_keep = s[16], suspect = s[17], limit = s[18], timed_out = s[19],
  }
end

local function orphaned(job)
  local expires = redis.call('ZSCORE', tag .. ':leases', job.worker or '')
  return not expires or tonumber(expires) <= clock.now or job.hold <= clock.now
end

local function settle(id, fence, result, text)
  local job = jobs.load(id)
  if not job then
    return endings.STALE
  end
  known[text] = known[text] or named(text)
  local settled = known[text]
  if job.settled_fence == fence and job.settled_kind == settled.kind then
    return endings.APPLIED
  elseif job.status ~= PROCESSING or job.fence ~= fence then
    return endings.STALE
  elseif settled.kind ~= RESCUED_KIND then
    job.settled_fence, job.settled_kind = fence, settled.kind
  elseif not orphaned(job) then
    return endings.STALE
  end
  return endings.apply(job, settled, result)
end

local verdicts = {}
for at = 2, #ARGV, PARTS do
  verdicts[#verdicts + 1] = settle(ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3])
end
index.flush()
return verdicts
