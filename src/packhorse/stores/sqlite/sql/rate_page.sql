-- Logs of rate gates, in the order of their gates.
select gate, log from packhorse_rates where gate > :behind order by gate limit :limit
