-- SPDX-License-Identifier: MIT
-- Names the workers that hold jobs under a lease that has run out, with what is known of them,
-- behind the instant.
-- needs: keys clock
local gone = {}
for _, worker in ipairs(redis.call('SMEMBERS', tag .. ':holders')) do
  local expires = tonumber(redis.call('ZSCORE', tag .. ':leases', worker) or 0)
  if expires <= clock.now then
    gone[#gone + 1] = {worker, redis.call('HGET', tag .. ':workers', worker)}
  end
end
return {clock.now, gone}
