// sandbayd: the daemon. Reads its configuration, takes the state directory, starts reactors, group
// and management, says "ready", and serves until SIGTERM or SIGINT.
//
// Exit codes: 0 after an orderly end, 1 with one line on standard error if acknowledged writes
// could not be flushed, 2 with one line if it will not start. A second signal during shutdown ends
// the process at once.
#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "group/configuration.h"
#include "group/group.h"
#include "group/listening.h"
#include "group/state_directory.h"
#include "group/units.h"
#include "group/version.h"
#include "metadata/rocksdb_store.h"
#include "mgmt/server.h"
#include "runtime/buffer.h"
#include "runtime/reactor.h"

namespace {

using namespace sandbay;

constexpr int kLostWrites = 1;
constexpr int kRefused = 2;
constexpr std::uint64_t kLeastMemoryOfReactor = 8 * BufferPool::kSlabBytes;

struct Arguments {
  std::string config;
  bool check = false;
  std::vector<std::string> portals;
  std::string management;
  std::string state;
  unsigned reactors = 0;
  bool pin = false;
  std::string log_level = "info";
};

int refuse(std::string_view message) {
  std::fflush(stdout);
  fmt::print(stderr, "sandbayd: {}\n", message);
  return kRefused;
}

void add_options(CLI::App& app, Arguments& arguments) {
  app.add_option("--config", arguments.config, "Configuration file (see sandbayd.toml(5))")
      ->required()
      ->type_name("FILE");
  app.add_flag("--check", arguments.check,
               "Only check the configuration: print every mistake, or that it is good");
  app.add_option("--portal", arguments.portals,
                 "Listen here instead of the file's portals; may be given several times")
      ->type_name("ADDRESS:PORT");
  app.add_option("--management", arguments.management,
                 "Address of the management interface instead of the file's")
      ->type_name("ADDRESS:PORT");
  app.add_option("--state", arguments.state, "State directory instead of the file's")
      ->type_name("DIRECTORY");
  app.add_option("--reactors", arguments.reactors,
                 "Reactor threads; one a processor if neither this nor the file says")
      ->check(CLI::Range(1, 64))
      ->type_name("N");
  app.add_flag("--pin", arguments.pin, "Keep each reactor on a processor of its own");
  app.add_option("--log-level", arguments.log_level, "debug, info, warning or error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->type_name("LEVEL")
      ->capture_default_str();
  app.set_version_flag("--version", fmt::format("sandbayd {}", group::version()));
  app.footer(
      "It prints one line, \"ready: …\", on standard output once initiators can log in, and logs\n"
      "to standard error. SIGTERM and SIGINT end it after flushing; a second one at once.\n\n"
      "Example: sandbayd --config conf/quickstart.toml");
}

// Puts what the command line says over what the file says. The error is one line.
std::optional<std::string> apply(const Arguments& arguments, group::Configuration& c) {
  if (!arguments.state.empty()) c.state = arguments.state;
  if (arguments.reactors != 0) c.reactors = arguments.reactors;
  if (c.reactors == 0) c.reactors = std::max(1U, std::thread::hardware_concurrency());
  if (!arguments.portals.empty()) c.portals.clear();
  for (const std::string& text : arguments.portals) {
    const auto endpoint = Endpoint::parse(text, group::kDefaultPortalPort);
    if (!endpoint) {
      return fmt::format(
          "--portal {}: not an address; write one such as 127.0.0.1:3260 or "
          "[::1]:3260",
          text);
    }
    c.portals.push_back({.listen = *endpoint});
  }
  if (!arguments.management.empty()) {
    const auto endpoint = Endpoint::parse(arguments.management, group::kDefaultManagementPort);
    if (!endpoint) {
      return fmt::format("--management {}: not an address; write one such as 127.0.0.1:8260",
                         arguments.management);
    }
    if (!c.management.allow_remote && !group::is_loopback(*endpoint)) {
      return fmt::format(
          "--management {}: can be reached from other machines, and management asks "
          "for no password; write a loopback address such as 127.0.0.1:8260, or "
          "set management.allow_remote = true in the file",
          arguments.management);
    }
    c.management.listen = *endpoint;
  }
  for (const group::PortalConfiguration& portal : c.portals) {
    const auto clash = group::check_apart(c.management.listen, portal.listen);
    if (clash) return fmt::format("portal {}", *clash);
  }
  if (c.memory_limit_bytes / c.reactors < kLeastMemoryOfReactor) {
    return fmt::format(
        "{}: group.memory_limit: {} is too little for {} reactors; write at least "
        "{} for each",
        c.file, group::format_size(c.memory_limit_bytes), c.reactors,
        group::format_size(kLeastMemoryOfReactor));
  }
  return std::nullopt;
}

void start_logging(const std::string& level) {
  auto logger = spdlog::stderr_color_mt("sandbayd");
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::debug);
  spdlog::set_default_logger(std::move(logger));
}

// Every connection and file takes a descriptor; the default limit is a shell's, not a server's.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void say_ready(const group::Group& group, const mgmt::Server& server) {
  std::string line = "ready:";
  for (const auto& portal : group.portals()) line += fmt::format(" portal {}", portal.listen);
  fmt::print("{} management http://{}\n", line, server.endpoint().to_string());
  std::fflush(stdout);
}

// From now on the next signal has its default effect.
void let_signals_kill(const std::vector<int>& signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

Task<void> serve_group(group::Group* group, const group::Configuration* configuration,
                       std::string* refusal) {
  auto server = mgmt::Server::start(*group, Executor::current(),
                                    {.listen = configuration->management.listen});
  if (!server) {
    *refusal = server.error();
    co_return;
  }
  if (!group::is_loopback((*server)->endpoint())) {
    spdlog::warn("management at {} can be reached from other machines and asks for no password",
                 (*server)->endpoint().to_string());
  }
  say_ready(*group, **server);
  const std::vector<int> signals = {SIGTERM, SIGINT};
  const int signal = co_await wait_for_signal(signals);
  let_signals_kill(signals);
  spdlog::info("{}: shutting down", signal == SIGINT ? "SIGINT" : "SIGTERM");
  co_await (*server)->stop();
}

// `refusal` is what kept it from starting, if anything did; `lost` whether it left writes behind.
Task<void> serve(group::Configuration configuration, std::string metadata_path,
                 std::string* refusal, bool* lost) {
  auto store = co_await metadata::open_rocksdb_store(Executor::current(), {.path = metadata_path});
  if (!store) {
    *refusal = store.error();
    co_return;
  }
  auto group = co_await group::Group::start(configuration, **store);
  if (group) {
    co_await serve_group(group->get(), &configuration, refusal);
    co_await (*group)->shutdown();
    *lost = (*group)->lost_writes();
  } else {
    *refusal = group.error();
  }
  co_await (*store)->close();
}

int run(const Arguments& arguments, group::Configuration configuration) {
  start_logging(arguments.log_level);
  raise_descriptor_limit();
  // Whatever this process makes, secrets in the metadata above all, is its user's alone.
  ::umask(077);
  constexpr int kSignals[] = {SIGTERM, SIGINT};
  block_signals(kSignals);
  std::signal(SIGPIPE, SIG_IGN);
  const auto state = group::StateDirectory::open(configuration.state);
  if (!state) return refuse(state.error());
  if (const auto refusal = group::cannot_listen(configuration)) return refuse(*refusal);
  auto reactors = ReactorGroup::create({.count = configuration.reactors,
                                        .memory_limit_bytes = configuration.memory_limit_bytes,
                                        .pin = arguments.pin});
  if (!reactors) return refuse(reactors.error());
  std::string refusal;
  bool lost = false;
  (*reactors)->run(
      [&] { return serve(configuration, state->metadata().string(), &refusal, &lost); });
  if (!refusal.empty()) return refuse(refusal);
  if (lost) {
    fmt::print(stderr,
               "sandbayd: ended, but acknowledged writes could not be flushed; see above\n");
    return kLostWrites;
  }
  spdlog::info("ended");
  return 0;
}

}  // namespace

int main(int argument_count, char** argument_values) {
  CLI::App app("Sandbay: a SAN in a sandbox. Exports volumes over iSCSI.", "sandbayd");
  Arguments arguments;
  add_options(app, arguments);
  try {
    app.parse(argument_count, argument_values);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    return refuse(fmt::format("{}; see sandbayd --help", error.what()));
  }
  auto configuration = group::load_configuration(arguments.config);
  if (!configuration) {
    const auto& mistakes = configuration.error();
    if (!arguments.check) return refuse(mistakes.front());
    for (const std::string& mistake : mistakes) fmt::print(stderr, "sandbayd: {}\n", mistake);
    return kRefused;
  }
  if (const auto mistake = apply(arguments, *configuration)) return refuse(*mistake);
  if (!arguments.check) return run(arguments, std::move(*configuration));
  fmt::print("{}: good: group {}, {} portal{}, {} volume{}\n", configuration->file,
             configuration->group_name, configuration->portals.size(),
             configuration->portals.size() == 1 ? "" : "s", configuration->volumes.size(),
             configuration->volumes.size() == 1 ? "" : "s");
  return 0;
}
