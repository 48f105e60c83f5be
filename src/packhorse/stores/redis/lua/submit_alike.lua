-- SPDX-License-Identifier: MIT
-- Stores jobs that share queue, task, priority and timeout, are due now, and have no keys, deadline
-- or tenant: all of them or none. The short way of `submit`, for a queue without limits.
-- Arguments: queue, priority, the name of their line, their state from one instant in it to the
-- other, and their definition or ""; then id and payload of each job, no id twice, and each one's
-- definition if they do not share it.
-- Answer: "ok"; or nothing was stored, and `submit` must decide: "known" if an id is there, or the
-- queue is a shelf, "careful" if the queue has more to it.
-- needs: clock heads
local tag, call, pack, format = KEYS[1], redis.call, cmsgpack.pack, string.format
local queue, priority, name, shared = ARGV[2], ARGV[3], ARGV[4], ARGV[6]
local alike = shared ~= ''
local FIRST, PARTS = 7, alike and 2 or 3
local CHUNK = 1000 -- jobs whose entries go in one command
-- See lib/jobs: status and fence, counters; what else is each job's own.
local STATE_BEGINS, STATE_ENDS = '\220\000\030\001\000', '\000\000\000\000'
local OWN_BEGINS, OWN_ENDS = '\157', '\000\192\192\192\192\192'

local known = call('HMGET', tag .. ':q:' .. queue, 'hard', 'closed', 'tenanted', 'sheds')
if known[1] or known[2] or known[3] or known[4] then
  return 'careful'
end
local keys, count = {}, 0
for at = FIRST, #ARGV, PARTS do
  count = count + 1
  keys[count] = tag .. ':j:' .. ARGV[at]
end
for from = 1, count, CHUNK do
  local last = math.min(from + CHUNK - 1, count)
  if call('EXISTS', tag .. ':shelf:' .. queue, unpack(keys, from, last)) > 0 then
    return 'known'
  end
end

-- What they share is packed once; their own is their number, which is also their place.
local moment = pack(clock.now)
local state = STATE_BEGINS .. moment .. ARGV[5] .. moment .. STATE_ENDS
local created, rank = moment .. moment, pack(tonumber(priority), 0)
local number = call('INCRBY', tag .. ':n', count) - count
local line = tag .. ':l:' .. name
local first_member, prefix, width = nil, nil, 0
for from = 1, count, CHUNK do
  local all, places, filled = {}, {}, 0
  for at = from, math.min(from + CHUNK - 1, count) do
    local arg = FIRST + (at - 1) * PARTS
    local id, own, digits = ARGV[arg], pack(number + at), format('%d', number + at)
    call('HSET', keys[at], 's', state, 'd', alike and shared or ARGV[arg + 2], 'p', ARGV[arg + 1],
      'b', OWN_BEGINS .. own .. created .. own .. rank .. own .. OWN_ENDS)
    if #digits ~= width then
      width, prefix = #digits, 'a0' .. string.char(96 + #digits) -- see keys.ranked
    end
    local member = prefix .. digits .. id
    first_member = first_member or member
    all[filled + 1], all[filled + 2] = digits, id
    places[filled + 1], places[filled + 2] = priority, member
    filled = filled + 2
  end
  call('ZADD', tag .. ':all', unpack(all))
  call('ZADD', line, unpack(places))
end
call('HINCRBY', tag .. ':counts', '1:' .. queue, count)
stand(queue, name, priority, first_member)
call('PUBLISH', tag .. ':wake:queue:' .. queue, 'queue:' .. queue)
return 'ok'
