// The report of a load, for people and for programs, and the whole command: reactors, run, report.
#include <fmt/core.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cassert>
#include <nlohmann/json.hpp>
#include <optional>

#include "lab/interrupt.h"
#include "lab/load.h"
#include "runtime/printable.h"
#include "runtime/reactor.h"

namespace sandbay::lab {
namespace {

double microseconds(std::uint64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e3; }

double rate_of(std::uint64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

std::string line_of(const char* name, const LoadDirection& direction, double seconds) {
  const Histogram& latency = direction.latency;
  return fmt::format(
      "{:<7}{:>12.0f} IOPS {:>10.1f} MB/s   mean {:>9.1f}  p50 {:>9.1f}  p99 {:>9.1f}  "
      "p99.9 {:>9.1f}  max {:>9.1f} us\n",
      name, rate_of(direction.requests, seconds), rate_of(direction.bytes, seconds) / 1e6,
      latency.mean() / 1e3, microseconds(latency.quantile(0.5)),
      microseconds(latency.quantile(0.99)), microseconds(latency.quantile(0.999)),
      microseconds(latency.largest()));
}

nlohmann::json json_of(const LoadDirection& direction, double seconds) {
  const Histogram& latency = direction.latency;
  return {
      {"requests", direction.requests},
      {"bytes", direction.bytes},
      {"iops", rate_of(direction.requests, seconds)},
      {"bytes_per_second", rate_of(direction.bytes, seconds)},
      {"latency_ns",
       {{"mean", latency.mean()},
        {"min", latency.smallest()},
        {"p50", latency.quantile(0.5)},
        {"p90", latency.quantile(0.9)},
        {"p99", latency.quantile(0.99)},
        {"p99.9", latency.quantile(0.999)},
        {"max", latency.largest()}}},
  };
}

LoadDirection both(const LoadReport& report) {
  LoadDirection sum = report.reads;
  sum.requests += report.writes.requests;
  sum.bytes += report.writes.bytes;
  sum.latency.add(report.writes.latency);
  return sum;
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

std::pair<double, double> processor_time() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return {seconds_of(usage.ru_utime), seconds_of(usage.ru_stime)};
}

// Seen from the last report on, for the rate of the last second.
struct ProgressLine {
  std::FILE* out;
  double seconds = 0;
  std::uint64_t requests = 0;
  std::uint64_t bytes = 0;

  void show(double now, std::uint64_t total, std::uint64_t total_bytes) {
    const double elapsed = now - seconds;
    if (elapsed <= 0) return;
    fmt::print(out, "\r{:6.0f} s {:>10.0f} IOPS {:>9.1f} MB/s ", now,
               rate_of(total - requests, elapsed), rate_of(total_bytes - bytes, elapsed) / 1e6);
    std::fflush(out);
    seconds = now;
    requests = total;
    bytes = total_bytes;
  }
};

}  // namespace

std::string to_text(const LoadOptions& options, const LoadReport& report) {
  std::string text = fmt::format(
      "{} {} of {} bytes, {}% reads, depth {}, {} session(s) of {} connection(s), {:.1f} s\n",
      options.random ? "random" : "sequential", options.read_percent == 100 ? "reads" : "requests",
      options.block_bytes, options.read_percent, options.queue_depth, report.sessions,
      options.connections, report.seconds);
  if (report.reads.requests != 0) text += line_of("read", report.reads, report.seconds);
  if (report.writes.requests != 0) text += line_of("write", report.writes, report.seconds);
  text += line_of("total", both(report), report.seconds);
  if (report.cpu_user_seconds + report.cpu_system_seconds > 0 && report.seconds > 0) {
    text += fmt::format("processor {:.0f}% user {:.0f}% system of one core\n",
                        report.cpu_user_seconds / report.seconds * 100,
                        report.cpu_system_seconds / report.seconds * 100);
  }
  if (report.idle_sessions != 0) {
    text += fmt::format("idle sessions {}, {:.0f} logins/s\n", report.idle_sessions,
                        report.idle_logins_per_second);
  }
  if (options.verify) {
    text +=
        fmt::format("verified {} blocks, {} wrong\n", report.blocks_verified, report.miscompares);
  }
  if (report.miscompares != 0) {
    text += fmt::format("first wrong block: {}\n", report.first_miscompare);
  }
  if (report.connections_lost != 0) {
    text += fmt::format("connections lost {}, commands sent again {}\n", report.connections_lost,
                        report.commands_retried);
  }
  if (report.errors != 0) {
    text += fmt::format("errors {}, the first: {}\n", report.errors, report.first_error);
  }
  return text;
}

std::string to_json(const LoadOptions& options, const LoadReport& report) {
  nlohmann::json json = {
      {"options",
       {{"urls", options.urls},
        {"block_bytes", options.block_bytes},
        {"read_percent", options.read_percent},
        {"random", options.random},
        {"queue_depth", options.queue_depth},
        {"connections", options.connections},
        {"sessions", options.sessions},
        {"reactors", options.reactors},
        {"seed", options.seed},
        {"verify", options.verify},
        {"rate", options.rate},
        {"keys", options.keys}}},
      {"seconds", report.seconds},
      {"read", json_of(report.reads, report.seconds)},
      {"write", json_of(report.writes, report.seconds)},
      {"total", json_of(both(report), report.seconds)},
      {"iops", report.iops()},
      {"bytes_per_second", report.bytes_per_second()},
      {"sessions", report.sessions},
      {"idle_sessions", report.idle_sessions},
      {"idle_logins_per_second", report.idle_logins_per_second},
      {"errors", report.errors},
      {"first_error", report.first_error},
      {"blocks_verified", report.blocks_verified},
      {"miscompares", report.miscompares},
      {"first_miscompare", report.first_miscompare},
      {"connections_lost", report.connections_lost},
      {"commands_retried", report.commands_retried},
      {"cpu_user_seconds", report.cpu_user_seconds},
      {"cpu_system_seconds", report.cpu_system_seconds},
  };
  // URLs may carry passwords; they stay out of reports.
  for (auto& url : json["options"]["urls"]) url = without_password(url.get<std::string>());
  return json.dump(2) + "\n";
}

int run_load(const LoadOptions& options, std::FILE* out, std::FILE* errors) {
  const std::string wrong = check(options);
  if (!wrong.empty()) {
    fmt::print(errors, "sandbay load: {}\n", printable(wrong));
    return 2;
  }
  auto group = ReactorGroup::create(
      {.count = options.reactors, .memory_limit_bytes = options.memory_limit_bytes});
  if (!group.has_value()) {
    fmt::print(errors, "sandbay load: {}\n", group.error().text);
    return 1;
  }
  ProgressLine line{.out = errors};
  LoadHooks hooks{.notice =
                      [&](const std::string& text) {
                        fmt::print(errors, "{}sandbay load: {}\n", options.progress ? "\n" : "",
                                   printable(text));
                      },
                  .processor_time = processor_time,
                  .stop = &stop_at_interrupt()};
  if (options.progress) {
    hooks.progress = [&line](double seconds, std::uint64_t requests, std::uint64_t bytes) {
      line.show(seconds, requests, bytes);
    };
  }
  std::optional<std::expected<LoadReport, std::string>> result;
  struct Work {
    static Task<void> main(const LoadOptions& wanted, std::span<Executor* const> executors,
                           LoadHooks told,
                           std::optional<std::expected<LoadReport, std::string>>& into) {
      std::expected<LoadReport, std::string> ended =
          co_await run(wanted, executors, std::move(told));
      into.emplace(std::move(ended));
    }
  };
  (*group)->run([&] { return Work::main(options, (*group)->executors(), hooks, result); });
  if (options.progress) fmt::print(errors, "\n");
  assert(result.has_value());
  if (!result->has_value()) {
    fmt::print(errors, "sandbay load: {}\n", printable(result->error()));
    return 1;
  }
  const LoadReport& report = **result;
  fmt::print(out, "{}",
             options.json ? to_json(options, report) : printable(to_text(options, report), '\n'));
  return report.errors != 0 || report.miscompares != 0 ? 1 : 0;
}

}  // namespace sandbay::lab
