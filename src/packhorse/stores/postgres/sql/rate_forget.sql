-- Forget logs of rate gates, unless they have changed since they were read.
delete from {rates} as known
using json_populate_recordset(null::{rates}, %s::json) as gone
where known.gate = gone.gate and known.log = gone.log
