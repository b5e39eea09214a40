// Running a load: workers for every URL and session, spread over the executors; idle sessions;
// progress; the sum of it all.
#include "lab/load.h"

#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <memory>

#include "iscsi/access.h"
#include "iscsi/initiator.h"
#include "iscsi/initiator_url.h"
#include "iscsi/keys.h"
#include "lab/load_worker.h"
#include "runtime/sync.h"

namespace sandbay::lab {
namespace {

constexpr std::uint32_t kMaximumIdleSessions = 100'000;
constexpr std::uint32_t kLoginsAtOnce = 16;
constexpr std::size_t kLeastMemoryPerReactor = std::size_t{4} << 20;
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
  Workers& workers;
  const LoadHooks& hooks;
  LoadSchedule schedule;
  std::pair<double, double> at_begin;
  std::pair<double, double> at_end;
  Event over;
  Gate gate;
  bool disconnected = false;  // Was told last.
};

// Tells when sessions have lost their connections, and when they have them again.
Task<void> tell_connections(Monitor& monitor) {
  std::size_t down = 0;
  for (const auto& worker : monitor.workers) {
    const bool connected = co_await invoke_on(worker->executor(), worker->connected());
    down += connected ? 0 : 1;
  }
  if ((down != 0) == monitor.disconnected) co_return;
  monitor.disconnected = down != 0;
  monitor.hooks.notice(down == 0
                           ? "all sessions are connected again"
                           : fmt::format("{} of {} sessions have lost their target; reconnecting",
                                         down, monitor.workers.size()));
}

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
    if (monitor.hooks.notice && home.now() < monitor.schedule.until) {
      co_await tell_connections(monitor);
    }
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
      co_return fmt::format("{}: {}", without_password(options.urls[index / options.sessions]),
                            wrong);
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
  schedule.stop = hooks->stop;
  Monitor monitor{.home = home, .workers = workers, .hooks = *hooks, .schedule = schedule};
  const bool entered = monitor.gate.enter();
  assert(entered);
  (void)entered;
  spawn(watch(monitor));
  co_await on_all(workers, [schedule](LoadWorker& worker) { return worker.drive(schedule); });
  monitor.over.set();
  co_await monitor.gate.close();
  const Duration measured = std::min(options.duration, home.now() - schedule.measure_from);
  report.seconds = std::chrono::duration<double>(std::max(measured, Duration{})).count();
  report.cpu_user_seconds = monitor.at_end.first - monitor.at_begin.first;
  report.cpu_system_seconds = monitor.at_end.second - monitor.at_begin.second;
  if (options.verify) {
    co_await on_all(workers, [](LoadWorker& worker) { return worker.read_back(); });
  }
}

std::string check_urls(const LoadOptions& options) {
  if (options.urls.empty()) {
    return "no URL is given; write iscsi://[user%password@]host[:port]/target-name/lun";
  }
  for (const std::string& url : options.urls) {
    std::string wrong = url_error(url);
    if (!wrong.empty()) return wrong;
  }
  return {};
}

std::string check_part(const LoadOptions& options) {
  if (options.block_bytes < 512 || options.block_bytes > (16U << 20U) ||
      options.block_bytes % 512 != 0) {
    return "--block-size: the block size is a multiple of 512 from 512B to 16MiB";
  }
  if (options.offset_bytes % options.block_bytes != 0) {
    return fmt::format("--offset {} is no multiple of --block-size {}", options.offset_bytes,
                       options.block_bytes);
  }
  if (options.span_bytes != 0 && options.span_bytes < options.block_bytes) {
    return fmt::format("--span {} is smaller than one request of --block-size {}",
                       options.span_bytes, options.block_bytes);
  }
  return {};
}

std::string check_mix(const LoadOptions& options) {
  if (options.read_percent > 100) {
    return "--read-percent is the share of reads: write 0 to 100";
  }
  const bool writes = options.read_percent < 100;
  if ((writes || options.verify) && !options.write) {
    return "writing destroys what is on the unit: add --write to allow it";
  }
  if (options.verify && !writes) {
    return "--verify checks what it has written, so it needs writes: give --read-percent less than "
           "100";
  }
  return {};
}

std::string check_counts(const LoadOptions& options) {
  if (options.queue_depth < 1 || options.queue_depth > iscsi::kMaximumInitiatorQueueDepth) {
    return fmt::format("--queue-depth: the queue depth is 1 to {}",
                       iscsi::kMaximumInitiatorQueueDepth);
  }
  if (options.connections < 1 || options.connections > iscsi::kMaximumInitiatorConnections) {
    return fmt::format("--connections: a session has 1 to {} connections",
                       iscsi::kMaximumInitiatorConnections);
  }
  if (options.sessions < 1 || options.sessions > kMaximumLoadSessions) {
    return fmt::format("--sessions: a URL has 1 to {} sessions", kMaximumLoadSessions);
  }
  if (options.idle_sessions > kMaximumIdleSessions) {
    return fmt::format("--idle-sessions: there are at most {} idle sessions", kMaximumIdleSessions);
  }
  if (options.duration < std::chrono::milliseconds(1) ||
      options.duration > std::chrono::hours(24) || options.warm_up < Duration{} ||
      options.warm_up > std::chrono::hours(1)) {
    return "--duration is 1ms to 24h, --warm-up at most 1h";
  }
  if (options.reconnect < Duration{} || options.reconnect > std::chrono::hours(1)) {
    return "--reconnect is 0s to 1h";
  }
  if (options.reactors < 1 || options.reactors > 64)
    return "--reactors: there are 1 to 64 reactors";
  return {};
}

std::string check_login(const LoadOptions& options) {
  const std::string problem = iscsi::name_problem(options.initiator_name);
  if (!problem.empty()) return "--initiator-name: " + problem;
  for (const auto& [key, value] : options.keys) {
    if (iscsi::find_key(key) == nullptr && !key.starts_with("X-")) {
      return fmt::format("--key {}: is no login key of RFC 7143; keys of one's own begin with X-",
                         key);
    }
  }
  // Each session's own buffers, and one request of each.
  const std::size_t least = options.reactors * kLeastMemoryPerReactor +
                            options.urls.size() * options.sessions * options.block_bytes;
  if (options.memory_limit_bytes < least) {
    return fmt::format("--memory-limit is {} bytes; this load needs at least {} bytes",
                       options.memory_limit_bytes, least);
  }
  return {};
}

}  // namespace

std::string without_password(std::string_view url) {
  const auto scheme = url.find("://");
  const auto at = url.rfind('@');
  if (at == std::string_view::npos) return std::string(url);
  const std::size_t host = scheme == std::string_view::npos || scheme > at ? 0 : scheme + 3;
  return std::string(url.substr(0, host)).append(url.substr(at + 1));
}

std::expected<std::string, std::string> with_password(std::string_view url,
                                                      std::string_view secret) {
  const auto at = url.rfind('@');
  const std::string_view front = url.substr(0, at == std::string_view::npos ? 0 : at);
  if (front.empty() || front.ends_with('/') || front.find('%') != std::string_view::npos) {
    return std::unexpected(
        fmt::format("{}: needs a user and no password beside --chap-secret-file; write "
                    "iscsi://user@host[:port]/target-name/lun",
                    without_password(url)));
  }
  // Each byte is escaped, so the first '%' ends the user.
  std::string full = std::string(front) + '%';
  for (const char c : secret) full += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  return full.append(url.substr(at));
}

std::string url_error(const std::string& url) {
  const auto parsed = iscsi::parse_url(url);
  const std::string shown = without_password(url);
  const auto at_sign = url.rfind('@');
  const auto scheme = url.find("://");
  if (at_sign != std::string::npos && scheme != std::string::npos &&
      url.find('/', scheme + 3) < at_sign) {
    return fmt::format("{}: write %2F for a / in the user or the password", shown);
  }
  if (!parsed.has_value()) {
    std::string wrong = parsed.error();
    const auto at = wrong.find(url);
    return at == std::string::npos ? wrong : wrong.replace(at, url.size(), shown);
  }
  if (parsed->target_name.empty()) {
    return fmt::format("{}: names no target and LUN; add /target-name/lun", shown);
  }
  return {};
}

std::string check(const LoadOptions& options) {
  for (const auto part : {check_urls, check_part, check_mix, check_counts, check_login}) {
    std::string wrong = part(options);
    if (!wrong.empty()) return wrong;
  }
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
