-- SPDX-License-Identifier: MIT
-- Finishes a waiting job as cancelled, or flags a running one and wakes its worker.
-- Arguments: job id; 1 if only a tenant's jobs are known to the caller, else 0; that tenant.
-- Answer: "cancelled", "flagged", "finished" or "unknown".
-- needs: keys clock wakes jobs queues sigs pending lines index places holders entering endings
local job = jobs.load(ARGV[2])
if not job or (ARGV[3] == '1' and sigs.read(job.sig).tenant ~= ARGV[4]) then
  return 'unknown'
elseif TERMINAL[job.status] then
  return 'finished'
end
local answer = 'cancelled'
if job.status == PROCESSING then
  answer = 'flagged'
  if not job.cancel then
    job.cancel, job.updated = true, clock.now
    jobs.save(job)
  end
  wakes.add('cancel:' .. job.worker)
else
  endings.finish_waiting(job, CANCELLED)
end
index.flush()
return answer
