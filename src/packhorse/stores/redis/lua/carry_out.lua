-- SPDX-License-Identifier: MIT
-- Shows jobs that wait or are dead, with all that is known of them.
-- Arguments: "after", a sequence number, how many are wanted, how many are looked at; or "ids" and
-- the ids. Answer: the instant, the number of the last one looked at (none: there are no more), and
-- for each its id, number, whether it took its keys last, who is stashed behind it, and its hash.
-- needs: keys clock jobs holders

-- Whether a key was taken last by this job.
local function took(kind, identity, id)
  return identity and redis.call('HGET', tag .. kind, identity) == id and 1 or 0
end

local function shown(id, job)
  local unique, idempotency, stashed = nil, nil, false
  if job.keyed then
    unique, idempotency = holders.identities(jobs.definition(id), job.task)
    stashed = unique and redis.call('HGET', tag .. ':stash', unique)
  end
  return {
    id, keys.number(job.seq), took(':uniq', unique, id), took(':idem', idempotency, id),
    stashed and cmsgpack.unpack(stashed) or false, redis.call('HGETALL', keys.job(id)),
  }
end

local found, reached, wanted = {}, false, #ARGV
if ARGV[2] == 'ids' then
  for at = 3, #ARGV do
    found[#found + 1] = ARGV[at]
  end
else
  wanted = tonumber(ARGV[4])
  found = redis.call('ZRANGEBYSCORE', tag .. ':all', '(' .. ARGV[3], '+inf', 'LIMIT', 0, ARGV[5])
  reached = #found == tonumber(ARGV[5])
end
local told, last = {}, false
for _, id in ipairs(found) do
  local job = jobs.load(id)
  if job and (WAITING[job.status] or job.status == DEAD) then
    if #told == wanted then
      return {clock.now, last, told}
    end
    told[#told + 1] = shown(id, job)
  end
  last = job and keys.number(job.seq) or last
end
return {clock.now, reached and last, told}
