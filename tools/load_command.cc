// sandbay load URL…: reads the options; src/lab does the work.
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "group/management_configuration.h"
#include "group/units.h"
#include "iscsi/initiator.h"
#include "lab/load.h"
#include "tools/commands.h"

namespace sandbay::cli {

namespace {

// Turns a parser of half-sentence errors into a check that CLI11 can call.
template <class Parse>
CLI::Validator checked_by(Parse parse, const std::string& name) {
  return CLI::Validator(
      [parse](std::string& text) {
        const auto value = parse(text);
        return value ? std::string() : value.error();
      },
      name);
}

struct LoadArguments {
  lab::LoadOptions options;
  std::string block_size = "4KiB";
  std::string duration = "10s";
  std::string warm_up = "1s";
  std::string offset = "0B";
  std::string span;
  std::string pattern = "random";
  std::string path = "round-robin";
  std::string memory = "1GiB";
  std::string reconnect = "30s";
  std::vector<std::string> keys;
  std::string secret_file;
};

void add_shape(CLI::App& verb, LoadArguments& a) {
  verb.add_option("URL", a.options.urls,
                  "Logical units: "
                  "iscsi://[user%password@]host[:port][,host[:port]...]/target-name/lun")
      ->required()
      ->expected(1, -1);
  const auto size = checked_by(group::parse_size, "SIZE");
  const auto time = checked_by(group::parse_duration, "TIME");
  verb.add_option("--block-size", a.block_size, "Bytes of one request")
      ->check(size)
      ->capture_default_str();
  verb.add_option("--read-percent", a.options.read_percent, "Share of reads; the rest are writes")
      ->check(CLI::Range(0, 100))
      ->capture_default_str();
  verb.add_option("--pattern", a.pattern, "random or sequential")
      ->check(CLI::IsMember({"random", "sequential"}))
      ->capture_default_str();
  verb.add_option("--queue-depth", a.options.queue_depth, "Requests in flight in each session")
      ->check(CLI::Range(std::uint32_t{1}, iscsi::kMaximumInitiatorQueueDepth))
      ->capture_default_str();
  verb.add_option("--connections", a.options.connections, "Connections of each session")
      ->check(CLI::Range(1, 32))
      ->capture_default_str();
  verb.add_option("--sessions", a.options.sessions, "Sessions for each URL")
      ->check(CLI::Range(std::uint32_t{1}, lab::kMaximumLoadSessions))
      ->capture_default_str();
  verb.add_option("--path", a.path, "How requests spread over connections")
      ->check(CLI::IsMember({"round-robin", "least-queue-depth"}))
      ->capture_default_str();
  verb.add_option("--duration", a.duration, "How long to measure")
      ->check(time)
      ->capture_default_str();
  verb.add_option("--warm-up", a.warm_up, "Load before that, not measured")
      ->check(time)
      ->capture_default_str();
  verb.add_option("--offset", a.offset, "Where the part of the logical unit begins that is used")
      ->check(size)
      ->capture_default_str();
  verb.add_option("--span", a.span, "How large that part is; to the end if left out")->check(size);
  verb.add_option("--rate", a.options.rate,
                  "Requests a second over all URLs; 0: as fast as possible")
      ->capture_default_str();
}

void add_rest(CLI::App& verb, LoadArguments& a) {
  verb.add_flag("--write", a.options.write,
                "Yes, destroy what is on the logical units: needed for writes and --verify");
  verb.add_flag("--verify", a.options.verify,
                "Write recognizable blocks and check everything that is read; half of the requests "
                "are reads unless --read-percent is given");
  verb.add_option("--seed", a.options.seed, "Seed of the random choices")->capture_default_str();
  verb.add_option("--reactors", a.options.reactors, "Threads of the generator")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  verb.add_option("--reconnect", a.reconnect,
                  "How long to try to get a lost target back before its requests fail; 0s: not")
      ->check(checked_by(group::parse_duration, "TIME"))
      ->capture_default_str();
  verb.add_option("--idle-sessions", a.options.idle_sessions,
                  "Number of additional sessions that log in and stay idle")
      ->capture_default_str();
  verb.add_option("--initiator-name", a.options.initiator_name, "Our iSCSI name")
      ->type_name("IQN")
      ->capture_default_str();
  verb.add_option("--chap-secret-file", a.secret_file,
                  "File whose first line is the CHAP secret of the URLs' user; a secret in a URL "
                  "is visible to every user")
      ->type_name("FILE");
  verb.add_option("--key", a.keys,
                  "Offer a login key with this value, such as HeaderDigest=CRC32C; may be given "
                  "several times")
      ->type_name("KEY=VALUE");
  verb.add_option("--memory-limit", a.memory, "Memory for buffers")
      ->check(checked_by(group::parse_size, "SIZE"))
      ->capture_default_str();
  verb.footer(
      "Prints requests and bytes a second, and mean, p50, p99 and p99.9 of the latency.\n"
      "Exit code 1 if a request failed or data did not compare, or the login did not succeed.\n\n"
      "Example: sandbay load --queue-depth 32 "
      "iscsi://127.0.0.1/iqn.2026-11.org.sandbay:quickstart/0");
}

void give_secret(std::vector<std::string>& urls, const std::string& file) {
  const auto secret = group::read_private_file(file);
  if (!secret) throw CLI::ValidationError("--chap-secret-file", secret.error());
  for (std::string& url : urls) {
    auto full = lab::with_password(url, *secret);
    if (!full) throw CLI::ValidationError("--chap-secret-file", full.error());
    url = std::move(*full);
  }
}

lab::LoadOptions options_of(const LoadArguments& a, bool mix_given, bool json) {
  lab::LoadOptions options = a.options;
  if (options.verify && !mix_given) options.read_percent = 50;
  options.block_bytes = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(group::parse_size(a.block_size).value(), UINT32_MAX));
  options.duration = group::parse_duration(a.duration).value();
  options.warm_up = group::parse_duration(a.warm_up).value();
  options.reconnect = group::parse_duration(a.reconnect).value();
  options.offset_bytes = group::parse_size(a.offset).value();
  if (!a.span.empty()) options.span_bytes = group::parse_size(a.span).value();
  options.memory_limit_bytes = group::parse_size(a.memory).value();
  options.random = a.pattern == "random";
  options.path =
      a.path == "round-robin" ? lab::LoadPath::kRoundRobin : lab::LoadPath::kLeastQueueDepth;
  for (const std::string& key : a.keys) {
    const auto equals = key.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw CLI::ValidationError(
          "--key",
          fmt::format("\"{}\" has no value; write KEY=VALUE, such as HeaderDigest=CRC32C", key));
    }
    options.keys[key.substr(0, equals)] = key.substr(equals + 1);
  }
  if (!a.secret_file.empty()) give_secret(options.urls, a.secret_file);
  options.json = json;
  options.progress = !json && ::isatty(STDERR_FILENO) == 1;
  return options;
}

}  // namespace

void add_load_command(CLI::App& app, Settings& settings) {
  const auto a = std::make_shared<LoadArguments>();
  CLI::App* verb =
      app.add_subcommand("load", "Put load on logical units, of any iSCSI target, and measure it");
  add_shape(*verb, *a);
  add_rest(*verb, *a);
  verb->callback([&settings, a, verb] {
    const bool mix_given = verb->count("--read-percent") != 0;
    settings.exit_code = lab::run_load(options_of(*a, mix_given, settings.json), stdout, stderr);
  });
}

}  // namespace sandbay::cli
