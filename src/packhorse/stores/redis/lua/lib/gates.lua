-- SPDX-License-Identifier: MIT
-- A port of `policies.gates`: what may hold back a ready job, and a turnstile for one claim.
-- A gate is a text: a letter for its kind, then what it is about.
--   P pause  O order  C, K task concurrency  Q queue concurrency
--   R, S task rate  T tenant rate  U queue rate  (K and S: with a key)
local gates = {}
local any_shut

-- Whether somebody closed any gate, whatever the limits.
local function shut()
  if any_shut == nil then
    any_shut = redis.call('EXISTS', tag .. ':shut') == 1
  end
  return any_shut
end

local function shut_until(gate)
  return shut() and redis.call('HGET', tag .. ':shut', gate)
end

local function add_pauses(names, queue, parts)
  local asked = {'Pt' .. keys.len(queue) .. parts.tenant}
  local seen = {}
  for _, name in ipairs({'ordering', 'concurrency', 'rate'}) do
    local key = parts[name]
    if key and not seen[key] then
      seen[key] = true
      asked[#asked + 1] = 'Pk' .. keys.len(queue) .. key
    end
  end
  for _, gate in ipairs(asked) do
    if shut_until(gate) then
      names[#names + 1] = gate
    end
  end
end

-- The names of a job's gates, in the order in which they are asked.
function gates.of(queue, task, sig)
  local conf, limits, parts = queues.get(queue).conf, queues.task(task), sigs.read(sig)
  local names = {}
  if shut() then
    add_pauses(names, queue, parts)
  end
  if parts.ordering then
    names[#names + 1] = 'O' .. keys.len(queue) .. keys.len(parts.tenant) .. parts.ordering
  end
  if limits and limits.concurrency then
    names[#names + 1] = sigs.concurrency_gate(task, sig)
  end
  if conf.concurrency then
    names[#names + 1] = 'Q' .. queue
  end
  if (limits and limits.rate) or shut_until(sigs.rate_gate(task, sig)) then
    names[#names + 1] = sigs.rate_gate(task, sig)
  end
  if conf.tenant_rate then
    names[#names + 1] = 'T' .. keys.len(queue) .. parts.tenant
  end
  if conf.rate then
    names[#names + 1] = 'U' .. queue
  end
  return names
end

-- How a gate stands before anybody is let through.
local function standing(name, queue, task, sig)
  local kind, gate = string.sub(name, 1, 1), {name = name, closes_until = 0}
  local conf, limits = queues.get(queue).conf, queues.task(task) or {}
  local until_text = shut_until(name)
  gate.shut = until_text == ''
  gate.until_us = tonumber(until_text or 0) or 0
  if kind == 'O' then
    gate.head = redis.call('ZRANGE', sigs.order(queue, sig), 0, 0)[1]
  elseif kind == 'C' or kind == 'K' then
    gate.limit = limits.concurrency
    gate.running = tonumber(redis.call('HGET', tag .. ':busy', name) or 0)
  elseif kind == 'Q' then
    gate.limit, gate.running = conf.concurrency, queues.count(queue, PROCESSING)
  elseif kind == 'R' or kind == 'S' then
    gate.rule = limits.rate
  elseif kind == 'T' then
    gate.rule = conf.tenant_rate
  elseif kind == 'U' then
    gate.rule = conf.rate
  end
  if gate.rule then
    gate.log = rates.current(rates.read(name), gate.rule, clock.now)
  end
  return gate
end

local function refused_by_time(gate, weight)
  local free = math.max(clock.now, gate.until_us)
  if gate.rule then
    free = rates.next_free(gate.log, gate.rule, weight, free)
  end
  if not free then -- the limit was lowered below its weight: it must not block others
    return {gate = gate, closes = false, never = true}
  elseif free > clock.now then
    return {gate = gate, closes = true, reopens = free}
  end
end

-- What one gate says to a job; nil lets it through.
local function refusal(gate, id, weight)
  if gate.shut or gate.closed then
    return {gate = gate, closes = true}
  elseif gate.head and gate.head ~= id then
    return {gate = gate, closes = false}
  elseif gate.limit and gate.running >= gate.limit then
    return {gate = gate, closes = true}
  end
  return refused_by_time(gate, weight)
end

-- Whether a rate that refuses a job would let a lighter one through.
local function too_heavy(gate, weight)
  if weight == 1 or not gate.rule or gate.shut or gate.closed then
    return false
  end
  return refused_by_time(gate, 1) == nil
end

-- The refusal of the first closed gate, or nil: the job may go.
function gates.admit(asked, id, weight)
  for at, gate in ipairs(asked) do
    local refused = refusal(gate, id, weight)
    if refused then
      refused.heavy = too_heavy(gate, weight)
      for other = at + 1, refused.heavy and #asked or at do
        if refusal(asked[other], id, weight) then
          refused.closes = false
        end
      end
      return refused
    end
  end
end

-- All gates of a job that are closed to it just now, for those who want to know why it waits.
function gates.closed(asked, id, weight)
  local found = {}
  for _, gate in ipairs(asked) do
    local refused = refusal(gate, id, weight)
    if refused then
      found[#found + 1] = refused
    end
  end
  return found
end

-- Lets jobs through one after another, and remembers for the next whom it let through.
function gates.turnstile()
  return {gates = {}, lists = {}, reopens = nil}
end

-- The gates of a job as this turnstile knows them.
function gates.asked(turnstile, queue, task, sig)
  local line = keys.line(queue, task, sig)
  local list = turnstile.lists[line]
  if not list then
    list = {}
    for at, name in ipairs(gates.of(queue, task, sig)) do
      turnstile.gates[name] = turnstile.gates[name] or standing(name, queue, task, sig)
      list[at] = turnstile.gates[name]
    end
    turnstile.lists[line] = list
  end
  return list
end

-- The refusal of a job, or nil: then it counts from now on.
function gates.pass(turnstile, job)
  local asked = gates.asked(turnstile, job.queue, job.task, job.sig)
  if #asked == 0 then
    return
  end
  local weight = sigs.read(job.sig).weight
  local refused = gates.admit(asked, job.id, weight)
  if refused then
    refused.gate.closed = refused.gate.closed or refused.closes
    if refused.reopens then
      turnstile.reopens = math.min(turnstile.reopens or refused.reopens, refused.reopens)
    end
    return refused
  end
  for _, gate in ipairs(asked) do
    if gate.running then
      gate.running = gate.running + 1
    end
    if gate.rule then
      gate.log = rates.granted(gate.log, gate.rule, weight, clock.now)
    end
  end
end

-- When time may open a gate to the lightest job; 'inf' when only an event opens it.
function gates.opens(gate)
  if gate.shut or gate.limit or gate.head then
    return 'inf'
  end
  local refused = refused_by_time(gate, 1)
  return refused and (refused.reopens or 'inf') or 0
end

-- Keep the logs, with what was granted; also when nothing was, see `rate_limit.current`.
function gates.write_logs(turnstile)
  for name, gate in pairs(turnstile.gates) do
    if gate.rule then
      rates.write(name, gate.log)
    end
  end
end
