-- Takes back the crashes that were counted for an owner that turns out to be alive.
--
-- ROLE: worker
-- KEYS: crash_marks
-- ARGV: epoch
-- USES: time crashes.marks crashes.recent
-- FLAGS: allow-oom
-- Returns: the number of suspects it has read.
-- Cost: O(suspects of the shard): at most the jobs that were in processing when owners crashed.
local stored = redis.call('HGETALL', crash_marks)
local now_s = now_us() / 1000000
for i = 1, #stored, 2 do
  local mark = read_mark(stored[i + 1])
  local kept = recent(mark.entries, now_s, epoch)
  mark.level, mark.entries = mark.level == 3 and kept ~= mark.entries and 2 or mark.level, kept
  write_mark(stored[i], mark)
end
return #stored / 2
