-- SPDX-License-Identifier: MIT
-- Lines of ready jobs, and groups of lines by the gate that holds them back.
--
-- Jobs that share all their gates stand in one line, in the order of claiming. Of each line only
-- the head stands in a group: the one of the gate that refused it last, or the group "" of lines
-- nothing is known against. KEY.heads says for each line where its head stands, KEY.groups when
-- time opens the groups of a queue and task. So a claim never looks at what is behind a head
-- that is held back, nor at heads behind a gate that is closed.
-- needs: queues
local lines = {}
local REOPENED_MAX = 1000 -- groups that are opened at once
local moves = {} -- what the next flush writes, by queue and task

-- The head of a line with an ordering key: the head of that key's line, if it is a ready one here.
local function head_in_order(queue, task, signature, line)
  local id = redis.call('ZRANGE', signatures.order(queue, signature), 0, 0)[1]
  local job = id and jobs.load(id)
  if not job or job.status ~= QUEUED or job.task ~= task or job.signature ~= signature then
    return
  end
  local member = keys.ranked(job)
  local score = redis.call('ZSCORE', line, member)
  if score then
    return {score, member}
  end
end

local function head_of(queue, task, signature)
  local line = keys.line(queue, task, signature)
  if signatures.read(signature).ordering then
    return head_in_order(queue, task, signature, line)
  end
  local first = redis.call('ZRANGE', line, 0, 0, 'WITHSCORES')
  return first[1] and {first[2], first[1]}
end

local function moves_of(queue, task)
  local pair = keys.pair(queue, task)
  moves[pair] = moves[pair] or {queue = queue, task = task, lines = {}, opens = {}}
  return moves[pair]
end

-- Open a group from an instant on; '' is open always. The next flush writes it, and the heads below.
function lines.open_group(queue, task, gate, from)
  moves_of(queue, task).opens[gate] = from
end

-- Note which job heads a line, {score, member}, or that none does: in the group it is in, or in that of `gate`.
-- A caller that knows where its head stands, {gate, member}, says so.
function lines.place(queue, task, signature, head, gate, stands)
  local known = moves_of(queue, task).lines
  local before = known[signature] or {stands = stands}
  known[signature] = {head = head or nil, gate = gate or before.gate, stands = before.stands}
end

-- Note that the head of a line is to be found and placed.
function lines.touch(queue, task, signature)
  table_in(moves_of(queue, task).lines, signature).search = true
end

-- Read where the heads of lines stand, of which that is not known: {gate, member}, false for none.
local function read_stands(pair, known)
  local asked = {}
  for signature, move in pairs(known) do
    if move.stands == nil then
      asked[#asked + 1] = signature
    end
  end
  for at, text in ipairs(pending.read('HMGET', tag .. KEY.heads .. pair, asked)) do
    known[asked[at]].stands = text and {cmsgpack.unpack(text)} or false
  end
end

-- Sort moves by what they change: members that leave and enter groups, fields of lines. Returns the lines
-- that are empty now, and whether one is new.
local function sort_moves(moved, leaving, entering, fields)
  local gone, is_new = {}, false
  for signature, move in pairs(moved.lines) do
    local head = move.head
    if move.search then
      head = head_of(moved.queue, moved.task, signature)
    end
    local was, old = unpack(move.stands or {})
    local gate = move.gate or was or ''
    local stays = head and head[2] == old and gate == was
    if old and not stays then
      local members = table_in(leaving, was)
      members[#members + 1] = old
    end
    if head and not stays then
      local entries = table_in(entering, gate)
      entries[#entries + 1], entries[#entries + 2] = head[1], head[2]
      moved.opens[gate] = moved.opens[gate] or 0 -- the head has changed, so the gate must be asked again
      fields[#fields + 1], fields[#fields + 2] = signature, cmsgpack.pack(gate, head[2])
    elseif not head and redis.call('EXISTS', keys.line(moved.queue, moved.task, signature)) == 1 then
      fields[#fields + 1], fields[#fields + 2] = signature, cmsgpack.pack(false, false)
      head = true
    elseif not head and move.stands then
      gone[#gone + 1] = signature
    end
    is_new = is_new or (head and not move.stands)
  end
  return gone, is_new
end

local function write_groups(pair, moved, leaving, entering)
  local groups, opens = tag .. KEY.groups .. pair, {}
  for gate, members in pairs(leaving) do
    pending.many('ZREM', keys.group(moved.queue, moved.task, gate), members)
  end
  for gate, entries in pairs(entering) do
    pending.many('ZADD', keys.group(moved.queue, moved.task, gate), entries)
  end
  for gate, from in pairs(moved.opens) do
    opens[#opens + 1], opens[#opens + 2] = from, gate
    if gate ~= '' then
      redis.call('SADD', tag .. KEY.gate_pairs .. gate, pair)
    end
  end
  pending.many('ZADD', groups, opens)
  for gate in pairs(leaving) do
    if redis.call('EXISTS', keys.group(moved.queue, moved.task, gate)) == 0 then
      redis.call('ZREM', groups, gate)
      if gate ~= '' then
        redis.call('SREM', tag .. KEY.gate_pairs .. gate, pair)
      end
    end
  end
end

local function write(pair, moved)
  local heads, leaving, entering, fields = tag .. KEY.heads .. pair, {}, {}, {}
  read_stands(pair, moved.lines)
  local gone, is_new = sort_moves(moved, leaving, entering, fields)
  write_groups(pair, moved, leaving, entering)
  pending.many('HSET', heads, fields)
  pending.many('HDEL', heads, gone)
  local change = is_new and 'SADD' or (#gone > 0 and redis.call('EXISTS', heads) == 0 and 'SREM')
  if change then
    redis.call(change, tag .. KEY.ready_tasks .. moved.queue, moved.task)
    redis.call(change, tag .. KEY.task_queues .. moved.task, moved.queue)
  end
end

-- Let claims look at the lines that a gate held back.
function lines.open_gate(gate)
  for _, pair in ipairs(redis.call('SMEMBERS', tag .. KEY.gate_pairs .. gate)) do
    redis.call('ZADD', tag .. KEY.groups .. pair, 'XX', 0, gate)
  end
end

-- Let claims look at every line of a queue and task, so many groups at a time. KEY.reopen names the
-- pairs that have more; the script `reopen` goes on with them.
function lines.open_all(pair)
  local key = tag .. KEY.groups .. pair
  local closed = redis.call('ZRANGEBYSCORE', key, '(0', '+inf', 'LIMIT', 0, REOPENED_MAX)
  for _, gate in ipairs(closed) do
    redis.call('ZADD', key, 'XX', 0, gate)
  end
  redis.call(#closed == REOPENED_MAX and 'SADD' or 'SREM', tag .. KEY.reopen, pair)
end

-- Write the heads of lines, and the groups.
function lines.flush()
  for pair, moved in pairs(moves) do
    moves[pair] = nil
    write(pair, moved)
  end
end
