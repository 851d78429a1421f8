# Sidekiq's settings, as of a production server, and the jobs of the bench.
require "sidekiq"
require "redis/connection/hiredis"

connection = {url: ENV.fetch("BENCH_REDIS"), driver: :hiredis}
Sidekiq.configure_server { |config| config.redis = connection }
Sidekiq.configure_client { |config| config.redis = connection }
# redis-rb 4.8 would print a warning for each push and each fetch of Sidekiq 6.4.
Redis.silence_deprecations = true
Sidekiq.logger.level = Logger.const_get(ENV.fetch("BENCH_LEVEL", "WARN"))

# Does nothing: what is measured is what surrounds it.
class Blank
  include Sidekiq::Worker

  def perform(id, payload)
  end
end

# Notes when it started, by the clocks that all processes of a machine share.
class Stamped
  include Sidekiq::Worker

  def perform(id)
    monotonic, now = Process.clock_gettime(Process::CLOCK_MONOTONIC), Time.now.to_f
    File.open(ENV.fetch("BENCH_STAMPS"), "ab") { |stamps| stamps.write("#{id} #{monotonic} #{now}\n") }
  end
end
