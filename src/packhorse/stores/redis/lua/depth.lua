-- SPDX-License-Identifier: MIT
-- Which jobs a full queue refuses or drops: a port of `policies.depth`. A waiting job is a list of
-- priority, sequence, id and bytes.
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
function depth.turned_away(standing, arrived, jobs_left, bytes_left, away)
  local last
  table.sort(standing, less_urgent) -- which makes a heap of it
  for _, one in ipairs(arrived) do
    if last and less_urgent(one, last) then
      away[one[3]] = true
    else
      join(standing, one)
      jobs_left, bytes_left = jobs_left - 1, bytes_left - one[4]
      while #standing > 0 and (jobs_left < 0 or bytes_left < 0) do
        last = leave(standing)
        jobs_left, bytes_left = jobs_left + 1, bytes_left + last[4]
        away[one[3]] = away[one[3]] or last == one or nil
      end
    end
  end
end

-- Note that a job arrives in a queue.
function depth.arrive(arriving, queue, payload)
  local noted = arriving[queue] or {jobs = 0, bytes = 0}
  noted.jobs, noted.bytes = noted.jobs + 1, noted.bytes + #payload
  arriving[queue] = noted
end

-- The refusal of jobs that do not fit into a queue, unless it drops jobs for them, or into the store.
function depth.refuse_full(arriving)
  local bytes, limit, held = 0, queues.get('').conf.max_bytes, nil
  for queue, new in pairs(arriving) do
    local conf = queues.get(queue).conf
    bytes = bytes + new.bytes
    if conf.on_full ~= 'drop' then
      held = conf.max_depth and queues.depth(queue)
      if held and held + new.jobs > conf.max_depth then
        return {'full', queue, held, conf.max_depth, 'depth'}
      end
      held = conf.max_bytes and queues.held_bytes(queue)
      if held and held + new.bytes > conf.max_bytes then
        return {'full', queue, held, conf.max_bytes, 'bytes'}
      end
    end
  end
  held = limit and queues.held_bytes('')
  if held and bytes > 0 and held + bytes > limit then
    return {'full', next(arriving), held, limit, 'store_bytes'}
  end
end

-- The waiting jobs of a queue that are the least urgent, until so many jobs and bytes are found.
local function least_urgent(queue, jobs_wanted, bytes_wanted)
  local found, key, PAGE = {}, tag .. KEY.droppable .. queue, 100
  while (jobs_wanted > 0 or bytes_wanted > 0) and #found < SHED_MAX do
    local members = redis.call('ZREVRANGE', key, #found, #found + PAGE - 1, 'WITHSCORES')
    for at = 1, #members, 2 do
      local digits, id = string.byte(members[at], 1) - 96, keys.numbered_id(members[at])
      local bytes = tonumber(redis.call('HGET', keys.job(id), FIELD.bytes) or 0)
      found[#found + 1] = {
        tonumber(members[at + 1]), tonumber(string.sub(members[at], 2, digits + 1)), id, bytes,
      }
      jobs_wanted, bytes_wanted = jobs_wanted - 1, bytes_wanted - bytes
    end
    if #members < 2 * PAGE then
      break
    end
  end
  return found
end

-- Of a queue that drops, given what arrives: add to `doomed` the ids that it gives up, and to `away`
-- those of them that take no place at all.
function depth.give_up(queue, arrived, doomed, away)
  local conf, bytes = queues.get(queue).conf, 0
  local jobs_left = conf.max_depth and conf.max_depth - queues.depth(queue) or math.huge
  local bytes_left = conf.max_bytes and conf.max_bytes - queues.held_bytes(queue) or math.huge
  for _, one in ipairs(arrived) do
    bytes = bytes + one[4]
  end
  local many, large = #arrived - jobs_left, bytes - bytes_left
  if many <= 0 and large <= 0 then
    return
  end
  local standing, all = least_urgent(queue, many, large), {}
  for _, list in ipairs({standing, arrived}) do
    for _, one in ipairs(list) do
      all[#all + 1] = one
    end
  end
  table.sort(all, less_urgent)
  for at = 1, math.min(SHED_MAX, #all) do
    if many <= 0 and large <= 0 then
      break
    end
    doomed[#doomed + 1] = all[at][3]
    many, large = many - 1, large - all[at][4]
  end
  depth.turned_away(standing, arrived, jobs_left, bytes_left, away)
end
