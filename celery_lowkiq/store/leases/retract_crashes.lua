-- Takes back the crashes that were counted for an owner that turns out to be alive.
--
-- KEYS: crash_marks
-- ARGV: epoch
-- USES: time suspects
-- FLAGS: allow-oom
-- Returns: the number of suspects it has read.
-- Cost: O(suspects of the shard): at most the jobs that were in processing when owners crashed.
local marks = redis.call('HGETALL', crash_marks)
local now_s = now_us() / 1000000
for i = 1, #marks, 2 do
  local level, entries, payload, left = read_mark(marks[i + 1])
  local kept = recent(entries, now_s, epoch)
  write_mark(marks[i], level == 3 and kept ~= entries and 2 or level, left, kept, payload)
end
return #marks / 2
