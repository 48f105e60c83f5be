-- SPDX-License-Identifier: MIT
-- Stores one job: `submit_alike` without its loops and lists, which cost a sixth of such a call.
-- Arguments: queue, priority, the name of its line, its state from one instant in it to the other,
-- its definition, id and payload. Answer: as that of `submit_alike`.
-- needs: clock heads
local tag, call, pack = KEYS[1], redis.call, cmsgpack.pack
local queue, priority, name, id = ARGV[2], ARGV[3], ARGV[4], ARGV[7]
local job = tag .. ':j:' .. id

local known = call('HMGET', tag .. ':q:' .. queue, 'hard', 'closed', 'tenanted', 'sheds')
if known[1] or known[2] or known[3] or known[4] then
  return 'careful'
elseif call('EXISTS', tag .. ':shelf:' .. queue, job) > 0 then
  return 'known'
end

local number, moment = call('INCRBY', tag .. ':n', '1'), pack(clock.now)
local own, digits = pack(number), string.format('%d', number)
local member = 'a0' .. string.char(96 + #digits) .. digits .. id
call('HSET', job,
  's', '\220\000\030\001\000' .. moment .. ARGV[5] .. moment .. '\000\000\000\000',
  'd', ARGV[6], 'p', ARGV[8],
  'b', '\157' .. own .. moment .. moment .. own .. pack(tonumber(priority), 0) .. own
    .. '\000\192\192\192\192\192')
call('ZADD', tag .. ':all', digits, id)
call('ZADD', tag .. ':l:' .. name, priority, member)
call('HINCRBY', tag .. ':counts', '1:' .. queue, '1')
stand(queue, name, priority, member)
call('PUBLISH', tag .. ':wake:queue:' .. queue, 'queue:' .. queue)
return 'ok'
