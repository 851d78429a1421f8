# Makes the calls that a line of standard input asks for, as "bulk 0 5000" for 5,000 calls with ids from 0,
# and answers it with "<start, monotonic s> <wall s> <CPU s>".
require_relative "jobs"

PUSH_BULK = 1000

def calls(kind, ids)
  case kind
  when "bulk"
    parts = ids.each_slice(PUSH_BULK).map { |part| part.map { |id| [id, {"v" => 1}] } }
    -> { parts.each { |args| Sidekiq::Client.push_bulk("class" => Blank, "args" => args) } }
  when "single"
    -> { ids.each { |id| Blank.perform_async(id, {"v" => 1}) } }
  when "stamped"
    -> { ids.each { |id| Stamped.perform_async(id) } }
  end
end

def clocks
  [Process::CLOCK_MONOTONIC, Process::CLOCK_PROCESS_CPUTIME_ID].map { |clock| Process.clock_gettime(clock) }
end

$stdout.sync = true
$stdin.each_line do |line|
  kind, first, count = line.split
  push = calls(kind, Array.new(count.to_i) { |n| first.to_i + n })
  began, cpu = clocks
  push.call
  ended, cpu_then = clocks
  puts "#{began} #{ended - began} #{cpu_then - cpu}"
end
