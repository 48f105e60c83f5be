-- SPDX-License-Identifier: MIT
-- Reads what there is to see of one job when somebody asks why it does not run: the instant, its
-- fields, whether it is a suspect and its queue paused, its gates that are closed, and how many
-- ready jobs rank before it.
-- needs: keys clock jobs queues sigs rates gates standings
local id, asked_by_tenant, tenant = ARGV[2], ARGV[3] == '1', ARGV[4]
local fields = redis.call('HMGET', keys.job(id), unpack(ARGV, 5))
if not fields[1] then
  return false
end
local job = jobs.load(id)
local parts = sigs.read(job.sig)
local turnstile, closed = gates.turnstile(), {}
local asked = gates.asked(turnstile, job.queue, job.task, job.sig)
for at, refused in ipairs(gates.closed(asked, id, parts.weight)) do
  local gate = refused.gate
  closed[at] = {
    gate.name,
    refused.reopens or false,
    gate.limit or false,
    gate.running or 0,
    gate.rule and cjson.encode(gate.rule) or false,
    standings.in_the_way(gate, job, asked_by_tenant and tenant),
  }
end
local ahead = 0
if job.status == QUEUED and not job.parked then
  ahead = standings.ahead(job)
end
return {
  clock.now, fields, job.suspect and 1 or 0, queues.get(job.queue).paused and 1 or 0, closed,
  ahead, redis.call('HVALS', tag .. ':workers'),
}
