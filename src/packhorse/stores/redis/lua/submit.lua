-- SPDX-License-Identifier: MIT
-- Stores jobs, all of them or none.
-- Arguments: for each job the eleven parts of lib/entering.
-- Answer: "ok", then for each job its status, or {id, status} of the one that answers for it; or
-- what is wrong: "shelf" id queue of, "closed" queue, "heavy" weight max window, "mismatch" id key,
-- "full" queue depth limit, or "deal" queue: `deal` is to be run first.
-- needs: keys clock wakes jobs queues sigs pending lines index places holders entering endings shedding intake
for first = 2, #ARGV, entering.PARTS do
  local problem = intake.consider({unpack(ARGV, first, first + entering.PARTS - 1)})
  if problem then
    return problem
  end
end
local problem = intake.refuse_full() or intake.deal_first()
if problem then
  return problem
end
intake.store()
local answers = intake.answers()
index.flush()
return answers
