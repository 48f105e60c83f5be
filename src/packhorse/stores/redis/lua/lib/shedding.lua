-- SPDX-License-Identifier: MIT
-- Who has to go when a queue is full: a port of `policies.depth`. One that waits is a list of
-- priority, number and id.
local shedding = {}

-- Whether one job that waits is less urgent than another: a lower priority, or a later one.
local function less_urgent(one, other)
  if one[1] ~= other[1] then
    return one[1] > other[1]
  elseif one[2] ~= other[2] then
    return one[2] > other[2]
  end
  return one[3] > other[3]
end
shedding.less_urgent = less_urgent

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

-- Of those that arrive one after another, whom a full queue gives up at once. A heap, since so many
-- may arrive that to look through all of them for each would take seconds.
function shedding.turned_away(standing, arrived, room, away)
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
