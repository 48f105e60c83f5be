-- SPDX-License-Identifier: MIT
-- Changes of sorted sets and counters, gathered over a script and written with few commands.
-- Of several changes to one member the last counts.
local pending = {}
local ARGUMENTS_MAX = 2000 -- of one command; Lua cannot unpack many more
local sets, counts, busy, named = {}, {}, {}, {}

-- Put a member into a sorted set. `registry` is a set that names the sorted sets which are not
-- empty, and `name` what it calls this one.
function pending.put(key, score, member, registry, name)
  local set = sets[key]
  if not set then
    set = {}
    sets[key] = set
  end
  set[member] = score
  if registry then
    named[key] = {registry, name}
  end
end

-- Take a member out of a sorted set.
function pending.drop(key, member, registry, name)
  pending.put(key, false, member, registry, name)
end

-- Count jobs of a queue in a status.
function pending.count(queue, status, by)
  local field = status .. ':' .. queue
  counts[field] = (counts[field] or 0) + by
end

-- Count running jobs that share a gate of concurrency.
function pending.run(gate, by)
  busy[gate] = (busy[gate] or 0) + by
end

local function flush_counts(key, changed)
  for field, by in pairs(changed) do
    if by ~= 0 and redis.call('HINCRBY', key, field, by) <= 0 then
      redis.call('HDEL', key, field)
    end
    changed[field] = nil
  end
end

-- One command with many arguments, in as many goes as it takes.
function pending.many(command, key, arguments)
  for first = 1, #arguments, ARGUMENTS_MAX do
    local last = math.min(first + ARGUMENTS_MAX - 1, #arguments)
    redis.call(command, key, unpack(arguments, first, last))
  end
end

local function flush_set(key, set)
  local added, removed = {}, {}
  for member, score in pairs(set) do
    if score then
      added[#added + 1] = score
      added[#added + 1] = member
    else
      removed[#removed + 1] = member
    end
  end
  pending.many('ZADD', key, added)
  pending.many('ZREM', key, removed)
  local name = named[key]
  if not name then
    return
  end
  named[key] = nil
  if #added > 0 then
    redis.call('SADD', tag .. name[1], name[2])
  elseif redis.call('EXISTS', key) == 0 then
    redis.call('SREM', tag .. name[1], name[2])
  end
end

-- Write all that was gathered.
function pending.flush()
  for key, set in pairs(sets) do
    sets[key] = nil
    flush_set(key, set)
  end
  flush_counts(tag .. ':counts', counts)
  flush_counts(tag .. ':busy', busy)
end
