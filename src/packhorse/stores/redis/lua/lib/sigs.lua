-- SPDX-License-Identifier: MIT
-- What a job shares with the others of its line, besides queue and task; "" for most.
-- Tenant, weight and the three keys, each with its length before it, "-" for a key it has not.
local sigs = {}
local read = {[''] = {tenant = '', weight = 1}}

local function part(text, at)
  if string.sub(text, at, at) == '-' then
    return nil, at + 1
  end
  local colon = string.find(text, ':', at, true)
  local last = colon + tonumber(string.sub(text, at, colon - 1))
  return string.sub(text, colon + 1, last), last + 1
end

-- The parts by name: tenant, weight, ordering, concurrency, rate.
function sigs.read(sig)
  local known = read[sig]
  if not known then
    local at, weight = 1, nil
    known = {}
    known.tenant, at = part(sig, at)
    weight, at = part(sig, at)
    known.weight = tonumber(weight)
    known.ordering, at = part(sig, at)
    known.concurrency, at = part(sig, at)
    known.rate, at = part(sig, at)
    read[sig] = known
  end
  return known
end

-- The name of the gate that bounds how many jobs of a task run; see `policies.gates`.
function sigs.concurrency_gate(task, sig)
  local key = sigs.read(sig).concurrency
  return key and 'K' .. keys.len(task) .. key or 'C' .. task
end

-- The name of the gate that bounds how many jobs of a task start.
function sigs.rate_gate(task, sig)
  local key = sigs.read(sig).rate
  return key and 'S' .. keys.len(task) .. key or 'R' .. task
end

-- The key of the line of an ordering key.
function sigs.order(queue, sig)
  local parts = sigs.read(sig)
  return tag .. ':o:' .. keys.len(queue) .. keys.len(parts.tenant) .. parts.ordering
end
