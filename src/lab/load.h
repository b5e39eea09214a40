// load: drives logical units as hard as asked, over our own initiator, and tells how they did.
// What `sandbay load` runs.
//
// Reads alone are the default: anything that writes destroys what is on the logical unit, so
// writing is asked for twice, by read_percent or verify and by `write`.
//
// Verify mode: every block written carries its LBA, a generation, the seed and a CRC; reads are
// checked against the generations that may be there; at the end everything written is read back.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <expected>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lab/histogram.h"
#include "runtime/clock.h"
#include "runtime/executor.h"
#include "runtime/io.h"
#include "runtime/task.h"

namespace sandbay::lab {

inline constexpr std::uint32_t kMaximumLoadSessions = 4096;  // Of one URL.

enum class LoadPath : std::uint8_t { kRoundRobin, kLeastQueueDepth };

struct LoadOptions {
  std::vector<std::string> urls;     // iscsi://[user%password@]host[:port]/iqn/lun
  std::uint32_t block_bytes = 4096;  // Of one request; a multiple of the logical block.
  std::uint32_t read_percent = 100;
  bool write = false;              // Consent: needed for read_percent < 100 and for verify.
  bool random = true;              // False: sequential, each slot of the queue takes the next.
  std::uint32_t queue_depth = 32;  // Requests in flight per URL and session.
  std::uint32_t connections = 1;   // Per session, 1 … 32.
  std::uint32_t sessions = 1;      // Per URL, 1 … kMaximumLoadSessions.
  LoadPath path = LoadPath::kRoundRobin;
  Duration duration = std::chrono::seconds(10);  // Measured; 1 ms … 24 h.
  Duration warm_up = std::chrono::seconds(1);    // Before that, not measured.
  unsigned reactors = 1;
  std::uint64_t seed = 1;
  bool verify = false;
  std::uint64_t offset_bytes = 0;  // The part of the logical unit that is used …
  std::uint64_t span_bytes = 0;    // … 0: to its end.
  std::uint64_t rate = 0;          // Requests a second over all URLs; 0: as fast as it goes.
  std::string initiator_name = "iqn.2026-11.org.sandbay:load";
  std::map<std::string, std::string> keys;  // Login offers: {"HeaderDigest", "CRC32C"}.
  std::size_t memory_limit_bytes = std::size_t{1} << 30;
  // A session that has lost its target tries for so long to get it back, and its requests wait and
  // are sent again; then they fail. Zero: they fail at once.
  Duration reconnect = std::chrono::seconds(30);

  // Idle sessions beside the load: this many are logged in first, over all URLs in turn, kept to
  // the end and counted in the report.
  std::uint32_t idle_sessions = 0;

  bool json = false;      // run_load: print the report as JSON.
  bool progress = false;  // run_load: a line each second on standard error.
};

struct LoadDirection {
  std::uint64_t requests = 0;
  std::uint64_t bytes = 0;
  Histogram latency;  // Nanoseconds.
};

struct LoadReport {
  LoadDirection reads;
  LoadDirection writes;
  std::uint64_t errors = 0;  // Requests that did not end in GOOD.
  std::string first_error;
  std::uint64_t blocks_verified = 0;
  std::uint64_t miscompares = 0;
  std::string first_miscompare;
  std::uint64_t commands_retried = 0;
  std::uint64_t connections_lost = 0;
  std::uint32_t sessions = 0;
  std::uint32_t idle_sessions = 0;
  double idle_logins_per_second = 0;
  double seconds = 0;           // Measured.
  double cpu_user_seconds = 0;  // Of this process while it was measured; 0 in simulation.
  double cpu_system_seconds = 0;

  double iops() const {
    return seconds > 0 ? double(reads.requests + writes.requests) / seconds : 0;
  }
  double bytes_per_second() const {
    return seconds > 0 ? double(reads.bytes + writes.bytes) / seconds : 0;
  }
};

// The URL as it may be shown: without user and password.
std::string without_password(std::string_view url);
// The URL with `secret` as the password of its user. The error says what is wrong with the URL.
std::expected<std::string, std::string> with_password(std::string_view url,
                                                      std::string_view secret);
// Why it leads to no logical unit, in one line that names it without the password; or an empty
// text.
std::string url_error(const std::string& url);

// What can be said about the options before anything is connected; empty: nothing wrong. It names
// the command line's option that is wrong.
std::string check(const LoadOptions& options);

// What a run tells and asks of whoever started it; each may be empty.
struct LoadHooks {
  // About once a second: the counts so far.
  std::function<void(double seconds, std::uint64_t requests, std::uint64_t bytes)> progress;
  // A line for people while the load runs: connections are lost, or there again.
  std::function<void(const std::string& line)> notice;
  // Processor time of this process so far, user and system, in seconds.
  std::function<std::pair<double, double>()> processor_time;
  // Once this is set the load ends early, and all that it has to check is still checked. May be set
  // by a signal handler; outlives the run.
  const std::atomic<bool>* stop = nullptr;
};

// Runs the load on these executors (the first is the caller's). The string says what went wrong
// before the load ran.
Task<std::expected<LoadReport, std::string>> run(LoadOptions options,
                                                 std::span<Executor* const> executors,
                                                 LoadHooks hooks);

std::string to_text(const LoadOptions& options, const LoadReport& report);
std::string to_json(const LoadOptions& options, const LoadReport& report);

// All of it: reactors, the run, the report on `out`, complaints on `errors`. SIGINT ends the load
// early, a second one the process. The exit code: 0, 1 if
// the load could not begin, a request failed or data did not compare, 2 if the options were wrong.
int run_load(const LoadOptions& options, std::FILE* out, std::FILE* errors);

}  // namespace sandbay::lab
