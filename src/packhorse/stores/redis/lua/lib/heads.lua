-- SPDX-License-Identifier: MIT
-- How jobs without keys that were stored at once are made known to claims, for the short ways.

-- If the first of them is the head of its line now, let it stand in the line's group; see
-- lib/lines. `name` is that of the line, without the tag.
local function stand(queue, name, priority, first)
  local call, tag = redis.call, KEYS[1]
  if call('ZRANGE', tag .. ':l:' .. name, 0, 0)[1] ~= first then
    return
  end
  local before = #queue .. ':' .. queue
  local task = string.match(name, '^%d+:(.*)$', #before + 1)
  local pair, gate = before .. task, ''
  local head = call('HGET', tag .. ':lm:' .. pair, '')
  if head then
    local member
    gate, member = cmsgpack.unpack(head)
    call('ZREM', tag .. ':g:' .. name .. gate, member)
  else
    call('SADD', tag .. ':t:' .. queue, task)
    call('SADD', tag .. ':tq:' .. task, queue)
  end
  call('ZADD', tag .. ':g:' .. name .. gate, priority, first)
  call('ZADD', tag .. ':gr:' .. pair, 0, gate)
  call('HSET', tag .. ':lm:' .. pair, '', cmsgpack.pack(gate, first))
end
