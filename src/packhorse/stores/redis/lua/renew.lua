-- SPDX-License-Identifier: MIT
-- Extends or begins a worker's lease, and releases what it does not know that it holds.
-- Arguments: worker, length of the lease, the renewal as JSON text, by how much the clock was set
-- forward, 1 if it tells what it holds else 0, then job id and fence of each.
-- Answer: expiry, clock, 1 if there was no live lease, how many were released, 1 if there are more.
-- needs: keys clock wakes jobs queues sigs pending lines index places holders entering endings
local HELD_MAX = 10000 -- jobs of one worker that are looked at
local RELEASED_MAX = 1000 -- jobs that one script releases
local worker, lease = ARGV[2], tonumber(ARGV[3])
local now, expires = clock.now, clock.now + lease

local before = redis.call('ZSCORE', tag .. ':leases', worker)
local started, known = now, redis.call('HGET', tag .. ':workers', worker)
if known then
  started = cmsgpack.unpack(known)[2]
end
redis.call('ZADD', tag .. ':leases', expires, worker)
redis.call('HSET', tag .. ':workers', worker,
  cmsgpack.pack({ARGV[4], started, now, expires, lease}))

local function unknown_to_worker()
  local held, found = {}, {}
  for at = 7, #ARGV, 2 do
    held[ARGV[at]] = tonumber(ARGV[at + 1])
  end
  for _, id in ipairs(redis.call('ZRANGE', tag .. ':held:' .. worker, 0, HELD_MAX - 1)) do
    local job = jobs.load(id)
    if held[id] ~= job.fence then
      found[#found + 1] = job
    end
  end
  return found
end

-- What was given before the clock was set forward may be held as much longer.
local function move_holds(step)
  for _, id in ipairs(redis.call('ZRANGE', tag .. ':held:' .. worker, 0, HELD_MAX - 1)) do
    local job = jobs.load(id)
    if job.started + step <= now then
      job.hold = job.hold + step
      redis.call('ZADD', tag .. ':held:' .. worker, keys.number(job.hold), id)
      jobs.save(job)
    end
  end
end

local step = tonumber(ARGV[5])
if step > 0 then
  move_holds(step)
end
local released, more = 0, 0
if ARGV[6] == '1' then
  for _, job in ipairs(unknown_to_worker()) do
    if released == RELEASED_MAX then
      more = 1
      break
    end
    endings.release(job)
    released = released + 1
  end
end
index.flush()
local lapsed = not before or tonumber(before) <= now
return {expires, now, lapsed and 1 or 0, released, more}
