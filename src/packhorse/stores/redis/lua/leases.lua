-- SPDX-License-Identifier: MIT
-- Leases of workers, and what they hold.

-- script: renew
-- Extends or begins a worker's lease, and releases jobs that it does not know it holds.
-- Arguments: worker, length of the lease, the renewal as JSON text, by how much the clock was set
-- forward, 1 if it lists the jobs it holds else 0, how many attempts succeeded, failed, and the time spent
-- in handlers, when it was asked for, then job id and fence of each it holds.
-- Answer: expiry, clock, 1 if there was no live lease, how many were released, 1 if there are more.
-- needs: settle
local HELD_MAX = 10000 -- jobs of one worker that are looked at
local RELEASED_MAX = 1000 -- jobs that one script releases
local worker, lease = ARGV[2], tonumber(ARGV[3])
local now = clock.now

local before = redis.call('ZSCORE', tag .. KEY.leases, worker)
-- As `policies.lease.renewed_until_us` says.
local expires = math.min(now + lease, math.max(tonumber(ARGV[10]) + lease, tonumber(before or 0)))
local started, known = now, redis.call('HGET', tag .. KEY.workers, worker)
local totals = {tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])}
if known then
  local row = cmsgpack.unpack(known)
  started = row[2]
  for at, total in ipairs(row[6] or {}) do
    totals[at] = math.max(totals[at], total)
  end
end
redis.call('ZADD', tag .. KEY.leases, expires, worker)
redis.call('HSET', tag .. KEY.workers, worker,
  cmsgpack.pack({ARGV[4], started, now, expires, lease, totals, POLICY.SCHEMA}))

local function unknown_to_worker()
  local held, found = {}, {}
  for at = 11, #ARGV, 2 do
    held[ARGV[at]] = tonumber(ARGV[at + 1])
  end
  for _, id in ipairs(redis.call('ZRANGE', tag .. KEY.held .. worker, 0, HELD_MAX - 1)) do
    local job = jobs.load(id)
    if held[id] ~= job.fence then
      found[#found + 1] = job
    end
  end
  return found
end

-- Extend the holds of jobs that were claimed before the clock was set forward.
local function move_holds(step)
  for _, id in ipairs(redis.call('ZRANGE', tag .. KEY.held .. worker, 0, HELD_MAX - 1)) do
    local job = jobs.load(id)
    if job.started_us + step <= now then
      job.hold_until_us = job.hold_until_us + step
      redis.call('ZADD', tag .. KEY.held .. worker, keys.number(job.hold_until_us), id)
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
    settle.release(job)
    released = released + 1
  end
end
index.flush()
local lapsed = not before or tonumber(before) <= now
return {expires, now, lapsed and 1 or 0, released, more}

-- script: leave
-- Ends a worker's lease at once, and releases what it holds.
-- Arguments: worker. Answer: how many were released, 1 if there are more.
-- needs: settle
local RELEASED_MAX = 1000 -- jobs that one script releases
local worker = ARGV[2]
redis.call('ZREM', tag .. KEY.leases, worker)
redis.call('HDEL', tag .. KEY.workers, worker)
local held = redis.call('ZRANGE', tag .. KEY.held .. worker, 0, RELEASED_MAX - 1)
for _, id in ipairs(held) do
  settle.release(jobs.load(id))
end
index.flush()
return {#held, #held == RELEASED_MAX and 1 or 0}

-- script: cancelled
-- Names the jobs a worker holds whose cancel is requested; looks at some of those it holds at a time.
-- Arguments: worker, how many to pass over. Answer: the jobs, and how many to pass over next, or -1.
-- needs: jobs
local LOOKED_AT = 1000 -- jobs that one script looks at
local first, wanted = tonumber(ARGV[3]), {}
local held = redis.call('ZRANGE', tag .. KEY.held .. ARGV[2], first, first + LOOKED_AT - 1)
for _, id in ipairs(held) do
  if jobs.load(id).cancel_requested then
    wanted[#wanted + 1] = id
  end
end
return {wanted, #held == LOOKED_AT and first + LOOKED_AT or -1}

-- script: expired
-- Names the workers that hold jobs under a lease that has run out, with what is known of them,
-- behind the instant.
-- needs: keys
local gone = {}
for _, worker in ipairs(redis.call('SMEMBERS', tag .. KEY.holders)) do
  local expires = tonumber(redis.call('ZSCORE', tag .. KEY.leases, worker) or 0)
  if expires <= clock.now then
    gone[#gone + 1] = {worker, redis.call('HGET', tag .. KEY.workers, worker)}
  end
end
return {clock.now, gone}

-- script: orphans
-- Reads processing jobs that their worker has lost: those held for too long by any worker, and those
-- of the named workers whose lease is gone. The instant, and of each job what its rescue needs.
-- needs: settle
local limit, named, found = tonumber(ARGV[2]), {}, {}
for at = 3, #ARGV do
  named[ARGV[at]] = true
end

local function look(worker, expires, until_us)
  local held = redis.call('ZRANGEBYSCORE', tag .. KEY.held .. worker,
    '-inf', until_us, 'LIMIT', 0, limit)
  for _, id in ipairs(held) do
    local job = jobs.load(id)
    local definition = jobs.definition(id)
    local finished_us, dead_us, results_us = settle.lifetimes(job.queue)
    found[#found + 1] = {
      job.sequence, id, job.fence, job.crashes, job.lone_crashes, job.alone and 1 or 0, worker,
      keys.number(job.hold_until_us), expires, definition[DEFINITION.options] or false,
      finished_us or false, results_us or false, dead_us or false,
    }
  end
end

for _, worker in ipairs(redis.call('SMEMBERS', tag .. KEY.holders)) do
  local expires = tonumber(redis.call('ZSCORE', tag .. KEY.leases, worker) or 0)
  local gone = expires <= clock.now
  local latest = gone and named[worker] and '+inf' or keys.number(clock.now)
  look(worker, gone and keys.number(expires) or false, latest)
end
table.sort(found, function(one, other) return one[1] < other[1] end)
while #found > limit do
  table.remove(found)
end
return {clock.now, found}

-- script: workers
-- Reads the instant, and of the workers known their last word and how many jobs each holds.
-- needs: keys
local known, found = redis.call('HGETALL', tag .. KEY.workers), {}
for at = 1, #known, 2 do
  found[#found + 1] = {known[at + 1], redis.call('ZCARD', tag .. KEY.held .. known[at])}
end
return {clock.now, found}
