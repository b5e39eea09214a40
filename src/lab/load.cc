// Running a load: workers for every URL and session, spread over the executors; idle sessions;
// progress; the sum of it all.
#include "lab/load.h"

#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <memory>

#include "iscsi/initiator.h"
#include "iscsi/initiator_url.h"
#include "lab/load_worker.h"
#include "runtime/sync.h"

namespace sandbay::lab {
namespace {

constexpr std::uint32_t kMaximumSessions = 4096;
constexpr std::uint32_t kMaximumIdleSessions = 100'000;
constexpr std::uint32_t kLoginsAtOnce = 16;
// The load starts this long after every worker is ready, at the same moment for all of them.
constexpr Duration kStartDelay = std::chrono::milliseconds(2);

using Workers = std::vector<std::unique_ptr<LoadWorker>>;

// Every worker does its part on its own executor; ends when the last one has.
template <class Part>
Task<void> on_all(Workers& workers, Part part) {
  Gate gate;
  for (const auto& worker : workers) {
    const bool entered = gate.enter();
    assert(entered);
    (void)entered;
    spawn([](LoadWorker& one, Part what, Gate& done) -> Task<void> {
      co_await invoke_on(one.executor(), what(one));
      done.leave();
    }(*worker, part, gate));
  }
  co_await gate.close();
}

std::uint64_t sum_requests(const Workers& workers) {
  std::uint64_t sum = 0;
  for (const auto& worker : workers) sum += worker->requests_so_far();
  return sum;
}

std::uint64_t sum_bytes(const Workers& workers) {
  std::uint64_t sum = 0;
  for (const auto& worker : workers) sum += worker->bytes_so_far();
  return sum;
}

// Reports about once a second until the load is over, and takes the processor times at the right
// moments. Its state is shared with run(), which waits for it.
struct Monitor {
  Executor& home;
  const Workers& workers;
  const LoadHooks& hooks;
  LoadSchedule schedule;
  std::pair<double, double> at_begin;
  std::pair<double, double> at_end;
  Event over;
  Gate gate;
};

Task<void> watch(Monitor& monitor) {
  Executor& home = monitor.home;
  const TimePoint start = home.now();
  co_await home.sleep_until(monitor.schedule.measure_from);
  if (monitor.hooks.processor_time) monitor.at_begin = monitor.hooks.processor_time();
  while (home.now() < monitor.schedule.until) {
    const TimePoint next =
        std::min(monitor.schedule.until, home.now() + Duration(std::chrono::seconds(1)));
    const bool ended = co_await monitor.over.wait_until(next);
    if (ended) break;
    if (!monitor.hooks.progress) continue;
    const double seconds = std::chrono::duration<double>(home.now() - start).count();
    monitor.hooks.progress(seconds, sum_requests(monitor.workers), sum_bytes(monitor.workers));
  }
  if (monitor.hooks.processor_time) monitor.at_end = monitor.hooks.processor_time();
  monitor.gate.leave();
}

void add(LoadDirection& sum, const LoadDirection& part) {
  sum.requests += part.requests;
  sum.bytes += part.bytes;
  sum.latency.add(part.latency);
}

void add(LoadReport& sum, const LoadReport& part) {
  add(sum.reads, part.reads);
  add(sum.writes, part.writes);
  if (sum.errors == 0) sum.first_error = part.first_error;
  sum.errors += part.errors;
  sum.blocks_verified += part.blocks_verified;
  if (sum.miscompares == 0) sum.first_miscompare = part.first_miscompare;
  sum.miscompares += part.miscompares;
  sum.commands_retried += part.commands_retried;
  sum.connections_lost += part.connections_lost;
  sum.sessions += part.sessions;
}

// --- Idle sessions -------------------------------------------------------------------------------

struct IdleSessions {
  std::vector<std::unique_ptr<iscsi::InitiatorSession>> sessions;
  std::uint32_t wanted = 0;
  std::uint32_t begun = 0;
  std::string wrong;
};

// What is passed by pointer here outlives the call: run() awaits all of it.
Task<void> log_in_some(IdleSessions& idle, const LoadOptions* load,
                       const std::vector<iscsi::InitiatorUrl>* places, Gate& gate) {
  const LoadOptions& options = *load;
  const std::vector<iscsi::InitiatorUrl>& urls = *places;
  while (idle.begun < idle.wanted && idle.wrong.empty()) {
    const iscsi::InitiatorUrl& url = urls[idle.begun++ % urls.size()];
    iscsi::InitiatorOptions login{
        .endpoint = url.endpoint,
        .initiator_name = options.initiator_name,
        .target_name = url.target_name,
        .chap = url.chap,
        .keys = options.keys,
        .queue_depth = 1,
        .receive_buffer_bytes = 8192,
    };
    auto session = co_await iscsi::InitiatorSession::login(std::move(login));
    if (session.has_value()) {
      idle.sessions.push_back(std::move(*session));
    } else if (idle.wrong.empty()) {
      idle.wrong = fmt::format("idle session {}: {}", idle.begun, session.error().message);
    }
  }
  gate.leave();
}

Task<void> log_in_idle(IdleSessions& idle, const LoadOptions* options,
                       const std::vector<iscsi::InitiatorUrl>* urls) {
  Gate gate;
  for (std::uint32_t count = 0; count < std::min(kLoginsAtOnce, idle.wanted); ++count) {
    const bool entered = gate.enter();
    assert(entered);
    (void)entered;
    spawn(log_in_some(idle, options, urls, gate));
  }
  co_await gate.close();
}

Task<void> close_idle(IdleSessions& idle) {
  while (!idle.sessions.empty()) {
    co_await idle.sessions.back()->close();
    idle.sessions.pop_back();
  }
}

// --- The parts of a run --------------------------------------------------------------------------

Workers make_workers(const LoadOptions& options, const std::vector<iscsi::InitiatorUrl>& urls,
                     std::span<Executor* const> executors) {
  Workers workers;
  const std::uint64_t total = urls.size() * options.sessions;
  for (const iscsi::InitiatorUrl& url : urls) {
    for (std::uint32_t share = 0; share < options.sessions; ++share) {
      const auto number = static_cast<std::uint32_t>(workers.size());
      workers.push_back(std::make_unique<LoadWorker>(LoadWorker::Place{
          .options = options,
          .url = url,
          .executor = *executors[number % executors.size()],
          .number = number,
          .share = share,
          .shares = options.sessions,
          .rate = options.rate == 0 ? 0 : std::max<std::uint64_t>(1, options.rate / total),
      }));
    }
  }
  return workers;
}

// One after the other: what is wrong with the first is probably wrong with all.
Task<std::string> set_up_all(Workers& workers, const LoadOptions* load) {
  const LoadOptions& options = *load;
  for (std::size_t index = 0; index < workers.size(); ++index) {
    LoadWorker& worker = *workers[index];
    std::string wrong = co_await invoke_on(worker.executor(), worker.set_up());
    if (!wrong.empty()) {
      co_return fmt::format("{}: {}", options.urls[index / options.sessions], wrong);
    }
  }
  co_return std::string();
}

Task<void> measure(Workers& workers, const LoadOptions* load, const LoadHooks* hooks,
                   LoadReport& report) {
  const LoadOptions& options = *load;
  Executor& home = Executor::current();
  LoadSchedule schedule;
  schedule.measure_from = home.now() + kStartDelay + options.warm_up;
  schedule.until = schedule.measure_from + options.duration;
  Monitor monitor{.home = home, .workers = workers, .hooks = *hooks, .schedule = schedule};
  const bool entered = monitor.gate.enter();
  assert(entered);
  (void)entered;
  spawn(watch(monitor));
  co_await on_all(workers, [schedule](LoadWorker& worker) { return worker.drive(schedule); });
  monitor.over.set();
  co_await monitor.gate.close();
  report.seconds = std::chrono::duration<double>(options.duration).count();
  report.cpu_user_seconds = monitor.at_end.first - monitor.at_begin.first;
  report.cpu_system_seconds = monitor.at_end.second - monitor.at_begin.second;
  if (options.verify) {
    co_await on_all(workers, [](LoadWorker& worker) { return worker.read_back(); });
  }
}

}  // namespace

std::string check(const LoadOptions& options) {
  if (options.urls.empty()) return "no URL is given";
  for (const std::string& url : options.urls) {
    const auto parsed = iscsi::parse_url(url);
    if (!parsed.has_value()) return parsed.error();
    if (parsed->target_name.empty()) return fmt::format("{}: names no target and LUN", url);
  }
  if (options.block_bytes < 512 || options.block_bytes > (16U << 20U) ||
      options.block_bytes % 512 != 0) {
    return "the block size is a multiple of 512 from 512 to 16MiB";
  }
  if (options.read_percent > 100) return "the share of reads is 0 to 100 per cent";
  const bool writes = options.read_percent < 100;
  if (writes && !options.write) {
    return "writing destroys what is on the unit: it has to be allowed explicitly";
  }
  if (options.verify && !writes) return "verify mode checks what it has written: it needs writes";
  if (options.queue_depth < 1 || options.queue_depth > iscsi::kMaximumInitiatorQueueDepth) {
    return fmt::format("the queue depth is 1 to {}", iscsi::kMaximumInitiatorQueueDepth);
  }
  if (options.connections < 1 || options.connections > iscsi::kMaximumInitiatorConnections) {
    return fmt::format("a session has 1 to {} connections", iscsi::kMaximumInitiatorConnections);
  }
  if (options.sessions < 1 || options.sessions > kMaximumSessions) {
    return fmt::format("a URL has 1 to {} sessions", kMaximumSessions);
  }
  if (options.idle_sessions > kMaximumIdleSessions) {
    return fmt::format("there are at most {} idle sessions", kMaximumIdleSessions);
  }
  if (options.duration < std::chrono::milliseconds(1) ||
      options.duration > std::chrono::hours(24) || options.warm_up < Duration{} ||
      options.warm_up > std::chrono::hours(1)) {
    return "the load lasts 1ms to 24h, the warm-up at most 1h";
  }
  if (options.reactors < 1 || options.reactors > 64) return "there are 1 to 64 reactors";
  return {};
}

Task<std::expected<LoadReport, std::string>> run(LoadOptions options,
                                                 std::span<Executor* const> executors,
                                                 LoadHooks hooks) {
  std::string wrong = check(options);
  if (!wrong.empty()) co_return std::unexpected(wrong);
  std::vector<iscsi::InitiatorUrl> urls;
  for (const std::string& url : options.urls) urls.push_back(*iscsi::parse_url(url));

  Executor& home = Executor::current();
  LoadReport report;
  IdleSessions idle{.wanted = options.idle_sessions};
  if (idle.wanted != 0) {
    const TimePoint start = home.now();
    co_await log_in_idle(idle, &options, &urls);
    const double seconds = std::chrono::duration<double>(home.now() - start).count();
    report.idle_sessions = static_cast<std::uint32_t>(idle.sessions.size());
    report.idle_logins_per_second =
        seconds > 0 ? static_cast<double>(report.idle_sessions) / seconds : 0;
    wrong = idle.wrong;
  }
  Workers workers = make_workers(options, urls, executors);
  if (wrong.empty()) wrong = co_await set_up_all(workers, &options);
  if (wrong.empty()) co_await measure(workers, &options, &hooks, report);
  co_await on_all(workers, [](LoadWorker& worker) { return worker.tear_down(); });
  co_await close_idle(idle);
  if (!wrong.empty()) co_return std::unexpected(wrong);
  for (const auto& worker : workers) add(report, worker->report());
  co_return report;
}

}  // namespace sandbay::lab
