-- SPDX-License-Identifier: MIT
-- Stores jobs that share queue, task, priority and timeout, are due now, and have no keys, deadline
-- or tenant: all of them or none. The short way of `submit`, for a queue without limits.
-- Arguments: queue, task, priority, timeout or "", then id, definition and payload of each job.
-- Answer: "ok", and the places of those whose id was there with the status of each; or "careful":
-- nothing was stored, and `submit` must decide.
-- needs: clock
local tag, queue, task, priority = KEYS[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local call, pack, format = redis.call, cmsgpack.pack, string.format
local FIRST, PARTS, STATE_HEADER = 6, 3, 3
local CHUNK = 1000 -- jobs whose entries go in one command
local QUEUED = 1
local HEADER, OWN_HEADER = '\220\000\030', '\157' -- see lib/jobs

local known = call('HMGET', tag .. ':q:' .. queue, 'hard', 'closed', 'tenanted', 'sheds')
if known[1] or known[2] or known[3] or known[4]
  or call('EXISTS', tag .. ':shelf:' .. queue) == 1 then
  return {'careful'}
end

local answer, seen, new = {'ok'}, {}, {}
for at = FIRST, #ARGV, PARTS do
  local id = ARGV[at]
  local key = tag .. ':j:' .. id
  local there = seen[id] and QUEUED
  if not there and call('EXISTS', key) == 1 then
    there = select(2, cmsgpack.unpack_limit(call('HGET', key, 's'), 1, STATE_HEADER))
  end
  if there then
    answer[#answer + 1] = (at - FIRST) / PARTS
    answer[#answer + 1] = there
  else
    seen[id] = true
    new[#new + 1] = at
  end
end
if #new == 0 then
  return answer
end

-- What they share is packed once; their own is their number, which is also their place.
local now, timeout = clock.now, tonumber(ARGV[5])
local state = HEADER .. pack(QUEUED, 0, now, nil, nil, 0, nil, timeout, nil, nil, nil, 0, nil, nil,
  nil, nil, nil, nil, nil, nil, queue, task, '', nil, priority, now, 0, 0, 0, 0)
local created = pack(now, now)
local rank = pack(priority, 0)
local rest = pack(0, nil, nil, nil, nil, nil)

local number = call('INCRBY', tag .. ':n', #new) - #new
local line = tag .. ':l:' .. #queue .. ':' .. queue .. #task .. ':' .. task
local first_member
for from = 1, #new, CHUNK do
  local all, places, count = {}, {}, 0
  for at = from, math.min(from + CHUNK - 1, #new) do
    local arg = new[at]
    local id, own = ARGV[arg], pack(number + at)
    local digits = format('%.0f', number + at)
    call('HSET', tag .. ':j:' .. id, 's', state, 'd', ARGV[arg + 1], 'p', ARGV[arg + 2],
      'b', OWN_HEADER .. own .. created .. own .. rank .. own .. rest)
    local member = 'a0' .. string.char(96 + #digits) .. digits .. id
    first_member = first_member or member
    all[count + 1], all[count + 2] = digits, id
    places[count + 1], places[count + 2] = priority, member
    count = count + 2
  end
  call('ZADD', tag .. ':all', unpack(all))
  call('ZADD', line, unpack(places))
end
call('HINCRBY', tag .. ':counts', '1:' .. queue, #new)

-- A line that was empty, or has a new head now, is made known to claims; see lib/lines.
local pair = #queue .. ':' .. queue .. task
local head = call('HGET', tag .. ':lm:' .. pair, '')
local gate, member
if head then
  gate, member = cmsgpack.unpack(head)
else
  call('SADD', tag .. ':t:' .. queue, task)
  call('SADD', tag .. ':tq:' .. task, queue)
end
if call('ZRANGE', line, 0, 0)[1] == first_member then
  local group = tag .. ':g:' .. #queue .. ':' .. queue .. #task .. ':' .. task .. (gate or '')
  if member then
    call('ZREM', group, member)
  end
  call('ZADD', group, priority, first_member)
  call('ZADD', tag .. ':gr:' .. pair, 0, gate or '')
  call('HSET', tag .. ':lm:' .. pair, '', pack(gate or '', first_member))
end
call('PUBLISH', tag .. ':wake:queue:' .. queue, 'queue:' .. queue)
return answer
