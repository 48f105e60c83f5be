-- SPDX-License-Identifier: MIT
-- Removes records and results whose lifetime has passed, workers gone for long, and gates and logs
-- that are over.
-- Arguments: how many jobs and workers at most, how long a worker is kept after its lease has ended.
-- Answer: how many jobs and workers.
-- needs: keys clock wakes jobs queues sigs pending lines index places holders entering endings settings
local GATES_MAX = 1000 -- closings that one script looks at, and logs it removes
local GHOSTS_MAX = 1000 -- workers gone for long that one script looks at
local now = clock.now

-- A result goes before its record.
local function drop_result(job)
  index.leave(job)
  job.has_result, job.result_dropped = nil, true
  job.expires = job.keep and job.finished + job.keep
  index.enter(job)
  jobs.save(job)
  redis.call('HDEL', keys.job(job.id), 'r')
end

local expired = redis.call('ZRANGEBYSCORE', tag .. ':exp', '-inf', keys.number(now), 'LIMIT', 0, ARGV[2])
for _, member in ipairs(expired) do
  local job = jobs.load(keys.numbered_id(member))
  if job.keep and job.finished + job.keep <= now then
    endings.forget(job)
  else
    drop_result(job)
  end
end
index.flush()

-- Workers gone for long that hold nothing; of those that do, the jobs have to be rescued first.
local function forget_ghosts(most)
  local found, gone = redis.call('ZRANGEBYSCORE', tag .. ':leases', '-inf',
    keys.number(now - tonumber(ARGV[3])), 'LIMIT', 0, GHOSTS_MAX), {}
  for _, worker in ipairs(found) do
    if #gone == most then
      break
    elseif redis.call('EXISTS', tag .. ':held:' .. worker) == 0 then
      gone[#gone + 1] = worker
    end
  end
  pending.many('ZREM', tag .. ':leases', gone)
  pending.many('HDEL', tag .. ':workers', gone)
  return #gone
end

local forgotten = forget_ghosts(tonumber(ARGV[2]) - #expired)

-- Closings that are over, and logs in which nothing counts by any rule there is.
local function over(set, until_us)
  local found = redis.call('ZRANGEBYSCORE', tag .. set, '-inf', keys.number(until_us), 'LIMIT', 0,
    GATES_MAX)
  pending.many('ZREM', tag .. set, found)
  return found
end

pending.many('HDEL', tag .. ':shut', over(':shuts', now))
if redis.call('EXISTS', tag .. ':logs') == 1 then
  for _, gate in ipairs(over(':logs', now - settings.longest_window())) do
    redis.call('DEL', tag .. ':log:' .. gate)
  end
end
return #expired + forgotten
