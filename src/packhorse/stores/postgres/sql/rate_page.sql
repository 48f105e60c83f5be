-- Logs of rate gates, in the order of their gates.
select gate, log from {rates} where gate > %(behind)s order by gate limit %(limit)s
