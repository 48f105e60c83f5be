-- SPDX-License-Identifier: MIT
-- Reads processing jobs that nobody holds rightfully: those held for too long by anybody, and those
-- of the named workers whose lease is gone. The instant, and of each job what its rescue needs.
-- needs: keys clock jobs
local limit, named, found = tonumber(ARGV[2]), {}, {}
for at = 3, #ARGV do
  named[ARGV[at]] = true
end

local function look(worker, expires, until_us)
  local held = redis.call('ZRANGEBYSCORE', tag .. ':held:' .. worker,
    '-inf', until_us, 'LIMIT', 0, limit)
  for _, id in ipairs(held) do
    local job = jobs.load(id)
    local definition = jobs.definition(id)
    found[#found + 1] = {
      job.seq, id, job.fence, job.crashes, job.lone_crashes, job.alone and 1 or 0, worker,
      keys.number(job.hold), expires, definition[10] or false,
    }
  end
end

for _, worker in ipairs(redis.call('SMEMBERS', tag .. ':holders')) do
  local expires = tonumber(redis.call('ZSCORE', tag .. ':leases', worker) or 0)
  local gone = expires <= clock.now
  local latest = gone and named[worker] and '+inf' or keys.number(clock.now)
  look(worker, gone and keys.number(expires) or false, latest)
end
table.sort(found, function(one, other) return one[1] < other[1] end)
local told = {}
for at = 1, math.min(limit, #found) do
  told[at] = found[at]
end
return {clock.now, told}
