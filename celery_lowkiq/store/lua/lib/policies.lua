-- Policies: what the task of the queue asks for beyond the rules of a job, and the places at which scripts apply it.
--
-- KEYS: due_prioritized
-- ARGV: policy
-- policy: '<name>=<value> ...'; '' without policies.
-- Each policy but that of priorities is in a library policy_<name>. Where its option is given, it probes its keys and adds its functions to places.
-- A script names the policies that act in it under USES. A place without a function costs a look into a table.
--
-- The places, and what their functions get and return:
--   split_priority(when)              push: priority of a call, and its time without the priority
--   refusal(last_job, now_s)          push: error reply, before the first write; nil accepts
--   drops_call(id, score, flag, waits)  push: true to drop a call; `waits`: whether a job of the id is waiting
--   due_after_call(id, waits, asked_for, now)  push: perform_in of a job that has not failed; nil keeps it
--   retry_after_call(id, time)        push: perform_in of a job that waits for its retry; nil keeps it
--   join_debounce(id, entry, later, due_at)  import_jobs: perform_in of a job with calls in two shards
--   trim(id, items)                   after items were added to waiting ones: drops payloads; true when an item stays
--   clear(id)                         a waiting job was removed, or replaced by a restored one
--   restored(id, job, time)           a claimed job that has not ended waits again, due at `time`
--   defer(id, now)                    claim: moves a due job to a later time and returns true, or false
--   run_time(id, perform_in, now)     claim: perform_in of a claimed job that has failed
--   claimed(ids, now)                 claim: jobs were claimed
--   unwanted(id, items)               claim: number of payloads, from the smallest score, that are claimed only to end
--                                     their calls
--   after_claim(now)                  claim: bounded cleaning
--   return_time(job, now)             settle: perform_in of a job that is returned; nil keeps it
--   not_run(id)                       settle: a claimed job was not run
--   done(id, score)                   settle: payloads up to the score were processed
--   after_settle()                    settle: bounded cleaning
--   died(id, at)                      settle, acquire: payloads of the id went to the morgue
--   done_score(id)                    score below which payloads of an id are stale; nil without one
-- The options priority, retry_priority, per_run and anew_on_push are values, which scripts read where they act.
local options, hooks = {}, {}
if policy ~= '' then
  for name, value in string.gmatch(policy, '%f[%a_]([%a_]+)=(%S+)') do
    options[name] = tonumber(value) or value
  end
end

-- Adds a policy's function to a place. It is skipped when a function before it returns an answer.
local function add_hook(place, hook)
  local former = hooks[place]
  hooks[place] = former and function(...)
    return former(...) or hook(...)
  end or hook
end

-- Policies priority and retry_priority: where jobs with a priority wait. `prioritized`: calls of this push have one.
if options.prioritized or options.priority or options.retry_priority then
  redis.call('ZCARD', due_prioritized)
end
if options.prioritized then
  function hooks.split_priority(when)
    return tonumber(string.sub(when, 1, 1)), string.sub(when, 3)
  end
end
