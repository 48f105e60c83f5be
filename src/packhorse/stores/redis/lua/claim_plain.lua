-- SPDX-License-Identifier: MIT
-- Hands ready jobs to one worker alone, where nothing can hold one back: no limits, tenants, keys,
-- suspects, or jobs that have become due. The short way of `claim`.
-- Arguments and answer are those of `claim`; or nothing: nothing was given, and `claim` must decide.
-- needs: clock
local tag, call, unpack_limit, pack = KEYS[1], redis.call, cmsgpack.unpack_limit, cmsgpack.pack
local worker, limit, default_timeout = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local queues_given, now = tonumber(ARGV[6]), clock.now
local HOLD_GRACE_US = 30000000
local HEADER, HEADER_BYTES, CHANGED = '\220\000\030', 3, 9 -- see lib/jobs
local PROCESSING, RANK_MAX = 2, 1000 -- a higher rank is one by age
local READ_MAX = 1000 -- entries of a line that are read at once

local lease = call('ZSCORE', tag .. ':leases', worker)
if not lease or tonumber(lease) <= now then
  return {now, -1, 0, 1, 0}
elseif call('EXISTS', tag .. ':shut') == 1 then
  return false
end
local knows = {}
for at = 7 + queues_given, #ARGV do
  knows[ARGV[at]] = true
end

-- The plain lines of a queue, or nil when there is something else.
local function lines_of(queue)
  local found = {}
  for _, task in ipairs(call('SMEMBERS', tag .. ':t:' .. queue)) do
    if knows[task] or knows['*'] then
      local pair = #queue .. ':' .. queue .. task
      local head = call('HGET', tag .. ':lm:' .. pair, '')
      if not head or call('HLEN', tag .. ':lm:' .. pair) > 1
        or call('HEXISTS', tag .. ':tasks', task) == 1 then
        return nil
      end
      local name = #queue .. ':' .. queue .. #task .. ':' .. task
      found[#found + 1] = {task = task, pair = pair, name = name, head = head,
        key = tag .. ':l:' .. name, taken = 0, at = 1, entries = {}}
    end
  end
  return found
end

local serving, seen, next_due = {}, {}, -1
for at = 7, 6 + queues_given do
  local queue = ARGV[at]
  local known = call('HMGET', tag .. ':q:' .. queue, 'hard', 'tenanted', 'sheds', 'paused',
    'priority')
  if known[1] or known[2] or known[3] then
    return false
  elseif not known[4] and not seen[queue] then
    seen[queue] = true
    local due = call('ZRANGE', tag .. ':due:' .. queue, 0, 0, 'WITHSCORES')[2]
    due = due and tonumber(due)
    local lines = lines_of(queue)
    if not lines or (due and due <= now) or call('EXISTS', tag .. ':sust:' .. queue) == 1 then
      return false
    elseif due and (next_due == -1 or due < next_due) then
      next_due = due
    end
    serving[#serving + 1] = {
      name = queue, lines = lines, at = at, priority = tonumber(known[5] or 0),
    }
  end
end
table.sort(serving, function(one, other)
  return one.priority < other.priority or (one.priority == other.priority and one.at < other.at)
end)

-- Read on in a line; its entries are member, score, member, score ...
local function read_on(line, wanted)
  local last = line.taken + math.min(wanted, READ_MAX) - 1
  line.entries = call('ZRANGE', line.key, line.taken, last, 'WITHSCORES')
  line.at = 1
end

-- The line whose next entry comes first.
local function first_of(lines, wanted)
  local best, score, member
  for _, line in ipairs(lines) do
    if line.at > #line.entries and not line.ended then
      read_on(line, wanted)
      line.ended = #line.entries == 0
    end
    local own = line.entries[line.at]
    if own then
      local rank = tonumber(line.entries[line.at + 1])
      if not best or rank < score or (rank == score and own < member) then
        best, score, member = line, rank, own
      end
    end
  end
  return best, score, member
end

local states = {}

-- What becomes of all jobs that have this state, or false: then `claim` must decide.
local function held_state(text)
  local rest, _, fence, _, _, _, _, _, timeout, deadline = unpack_limit(text, CHANGED, HEADER_BYTES)
  if deadline and deadline <= now then
    return false
  end
  local hold = now + (timeout or default_timeout) + HOLD_GRACE_US
  local next_fence = clock.given and fence + 1 or math.max(fence + 1, now)
  return {
    hold = hold, deadline = deadline,
    text = HEADER .. pack(PROCESSING, next_fence, now, worker, now, hold, nil, timeout, deadline)
      .. string.sub(text, rest + 1),
  }
end

local answer, count, ids, held = {now, next_due, 0, 0, 0}, 5, {}, {}
for _, queue in ipairs(serving) do
  while #ids < limit do
    local line, score, member = first_of(queue.lines, limit - #ids)
    if not line then
      break
    end
    local at = string.byte(member, 1) - 94
    local id = string.sub(member, at + string.byte(member, at) - 95)
    local found = call('HMGET', tag .. ':j:' .. id, 's', 'd', 'p')
    local state = states[found[1]]
    if state == nil then
      state = held_state(found[1])
      states[found[1]] = state
    end
    if score > RANK_MAX or not state then
      return false
    end
    line.taken, line.at = line.taken + 1, line.at + 2
    ids[#ids + 1], held[#held + 1] = id, state
    answer[count + 1], answer[count + 2] = id, state.text
    answer[count + 3], answer[count + 4] = found[2], found[3]
    count = count + 4
  end
end
if #ids == 0 then
  return answer
end

-- Everything is decided: from here on it is written.
local holds = {}
for at, id in ipairs(ids) do
  local state = held[at]
  call('HSET', tag .. ':j:' .. id, 's', state.text)
  holds[#holds + 1], holds[#holds + 2] = state.hold, id
  if state.deadline then
    local seq = select(2, unpack_limit(call('HGET', tag .. ':j:' .. id, 'b'), 1, 1))
    local digits = string.format('%.0f', seq)
    call('ZREM', tag .. ':dl', string.char(96 + #digits) .. digits .. id)
  end
  if #holds >= 2 * READ_MAX or at == #ids then
    call('ZADD', tag .. ':held:' .. worker, unpack(holds))
    holds = {}
  end
end
call('SADD', tag .. ':holders', worker)

-- Take what was given out of its line, and let the next one be its head; see lib/lines.
local function advance(queue, line)
  call('ZREMRANGEBYRANK', line.key, 0, line.taken - 1)
  call('HINCRBY', tag .. ':busy', 'C' .. line.task, line.taken)
  local gate, member = cmsgpack.unpack(line.head)
  local group, lm = tag .. ':g:' .. line.name .. gate, tag .. ':lm:' .. line.pair
  call('ZREM', group, member)
  local head = call('ZRANGE', line.key, 0, 0, 'WITHSCORES')
  if head[1] then
    call('ZADD', group, head[2], head[1])
    call('HSET', lm, '', pack(gate, head[1]))
    return
  end
  call('DEL', lm)
  call('SREM', tag .. ':t:' .. queue, line.task)
  call('SREM', tag .. ':tq:' .. line.task, queue)
  call('ZREM', tag .. ':gr:' .. line.pair, gate)
  call('SREM', tag .. ':gq:' .. gate, line.pair)
end

for _, queue in ipairs(serving) do
  local taken = 0
  for _, line in ipairs(queue.lines) do
    if line.taken > 0 then
      taken = taken + line.taken
      advance(queue.name, line)
    end
  end
  if taken > 0 then
    if call('HINCRBY', tag .. ':counts', '1:' .. queue.name, -taken) <= 0 then
      call('HDEL', tag .. ':counts', '1:' .. queue.name)
    end
    call('HINCRBY', tag .. ':counts', '2:' .. queue.name, taken)
  end
end
return answer
