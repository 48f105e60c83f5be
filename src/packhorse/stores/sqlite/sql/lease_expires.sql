-- Until when a worker's lease runs.
select expires_us from packhorse_workers where worker = ?
