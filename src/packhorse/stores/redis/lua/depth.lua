-- SPDX-License-Identifier: MIT
-- Which jobs a full queue refuses or drops: a port of `policies.depth`. A waiting job is a list of
-- priority, sequence and id.
-- needs: queues
local depth = {}
local SHED_MAX = 10000 -- jobs that one submit may drop from a queue whose limit was lowered

-- Whether one job that waits is less urgent than another: a lower priority, or a later one.
local function less_urgent(one, other)
  if one[1] ~= other[1] then
    return one[1] > other[1]
  elseif one[2] ~= other[2] then
    return one[2] > other[2]
  end
  return one[3] > other[3]
end

-- Join a heap whose first is the least urgent.
local function join(heap, one)
  local at = #heap + 1
  while at > 1 and less_urgent(one, heap[math.floor(at / 2)]) do
    heap[at] = heap[math.floor(at / 2)]
    at = math.floor(at / 2)
  end
  heap[at] = one
end

-- Take the first out of such a heap.
local function leave(heap)
  local first, last, at = heap[1], table.remove(heap), 1
  while 2 * at <= #heap do
    local below = 2 * at
    if heap[below + 1] and less_urgent(heap[below + 1], heap[below]) then
      below = below + 1
    end
    if not less_urgent(heap[below], last) then
      break
    end
    heap[at], at = heap[below], below
  end
  if #heap > 0 then
    heap[at] = last
  end
  return first
end

-- Of jobs that arrive one after another, those that a full queue gives up at once. A heap, since
-- looking through all of them for each would take seconds when many arrive.
function depth.turned_away(standing, arrived, room, away)
  table.sort(standing, less_urgent) -- which makes a heap of it
  for _, one in ipairs(arrived) do
    join(standing, one)
    room = room - 1
    while room < 0 do
      room = room + 1
      if leave(standing) == one then
        away[one[3]] = true
      end
    end
  end
end

-- The refusal of jobs that do not fit into a queue, unless it drops jobs for them.
function depth.refuse_full(queue, count)
  local conf = queues.get(queue).conf
  if conf.max_depth and conf.on_full ~= 'drop' then
    local waiting = queues.depth(queue)
    if waiting + count > conf.max_depth then
      return {'full', queue, waiting, conf.max_depth}
    end
  end
end

-- The waiting jobs of a queue that are the least urgent.
local function least_urgent(queue, count)
  local found = {}
  local members = redis.call('ZREVRANGE', tag .. KEY.droppable .. queue, 0, count - 1, 'WITHSCORES')
  for at = 1, #members, 2 do
    local digits = string.byte(members[at], 1) - 96
    found[#found + 1] = {
      tonumber(members[at + 1]),
      tonumber(string.sub(members[at], 2, digits + 1)),
      keys.numbered_id(members[at]),
    }
  end
  return found
end

-- Of a queue that drops, given what arrives: add to `doomed` the ids that it gives up, and to `away`
-- those of them that take no place at all.
function depth.give_up(queue, arrived, doomed, away)
  local limit, waiting = queues.get(queue).conf.max_depth, queues.depth(queue)
  local excess = limit and math.min(waiting + #arrived - limit, SHED_MAX) or 0
  if excess <= 0 then
    return
  end
  local standing, all = least_urgent(queue, excess), {}
  for _, list in ipairs({standing, arrived}) do
    for _, one in ipairs(list) do
      all[#all + 1] = one
    end
  end
  table.sort(all, less_urgent)
  for at = 1, math.min(excess, #all) do
    doomed[#doomed + 1] = all[at][3]
  end
  depth.turned_away(standing, arrived, limit - waiting, away)
end
