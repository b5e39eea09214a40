// sandbayd: the daemon. Reads its configuration, takes the state directory, starts reactors, group
// and management, says "ready", and serves until SIGTERM or SIGINT. SIGHUP makes it read anew who
// may manage it.
//
// Exit codes, all but 0 with one line on standard error: 0 after an orderly end, 1 if acknowledged
// writes could not be flushed, 2 if the configuration or the command line is wrong, 3 if it cannot
// start now but may later. A second signal during shutdown ends the process at once.
#include <fmt/format.h>
#include <sched.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "group/configuration.h"
#include "group/export_document.h"
#include "group/group.h"
#include "group/import_file.h"
#include "group/import_rules.h"
#include "group/listening.h"
#include "group/log.h"
#include "group/machine_check.h"
#include "group/state_directory.h"
#include "group/units.h"
#include "group/version.h"
#include "metadata/rocksdb_store.h"
#include "mgmt/server.h"
#include "runtime/blocking.h"
#include "runtime/buffer.h"
#include "runtime/log_queue.h"
#include "runtime/reactor.h"
#include "runtime/service_manager.h"
#include "runtime/start_refusal.h"
#include "runtime/sync.h"

namespace {

using namespace sandbay;

constexpr int kLostWrites = 1;
constexpr int kWrongMap = 1;
constexpr int kRefused = 2;
constexpr int kNotNow = 3;

// How long a start waits for locks and ports that another process has: after a kill the kernel may
// keep them until the last I/O has ended. A service shall start; a person at a terminal wants to
// know why it does not.
constexpr std::chrono::milliseconds kServicePatience{15'000};
constexpr std::chrono::milliseconds kPatience{3000};
constexpr Duration kLockPatienceServing = std::chrono::milliseconds(200);

// While it starts or ends, a service says so this often, and asks for this much time from then on.
constexpr Duration kExtendEvery = std::chrono::seconds(5);
constexpr Duration kExtension = std::chrono::seconds(30);
// How long the end waits for whoever reads the log.
constexpr Duration kLogPatience = std::chrono::seconds(1);
constexpr std::uint64_t kLeastMemoryOfReactor = 8 * BufferPool::kSlabBytes;

struct Arguments {
  std::string config;
  bool check = false;
  bool check_map = false;
  std::string import;
  bool force = false;
  std::vector<std::string> portals;
  std::string management;
  bool free_ports = false;
  std::string state;
  std::string token_file;
  bool faults = false;
  unsigned reactors = 0;
  std::string io;
  bool pin = false;
  bool forget_lead = false;
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
  CLI::Option* const check_map = app.add_flag(
      "--check-map", arguments.check_map,
      "Start without portals and management, verify the maps of all pools, print what was found, "
      "and end; with 1 if something is wrong");
  CLI::Option* const import =
      app.add_option("--import", arguments.import,
                     "Take in what sandbay group export has written, and end; refused unless the "
                     "state directory is empty")
          ->type_name("FILE")
          ->excludes(check_map);
  app.add_flag("--force", arguments.force,
               "With --import: also in place of what is in the state directory")
      ->needs(import);
  app.add_option("--portal", arguments.portals,
                 "Listen here instead of the file's portals; may be given several times")
      ->type_name("ADDRESS:PORT");
  app.add_option("--management", arguments.management,
                 "Address of the management interface instead of the file's")
      ->type_name("ADDRESS:PORT");
  app.add_flag(
      "--free-ports", arguments.free_ports,
      "Listen at the file's addresses, but on ports that the kernel chooses; the line that "
      "says \"ready\" has them");
  app.add_option("--state", arguments.state, "State directory instead of the file's")
      ->type_name("DIRECTORY");
  app.add_option("--token-file", arguments.token_file,
                 "File whose first line is one more token, which may do everything")
      ->type_name("FILE");
  app.add_flag("--faults", arguments.faults, "Enable faults, whatever the file says");
  app.add_option("--reactors", arguments.reactors,
                 "Reactor threads; one a processor if neither this nor the file says")
      ->check(CLI::Range(1, 64))
      ->type_name("N");
  app.add_option("--io", arguments.io,
                 "How the kernel is asked: auto, io_uring or epoll, instead of what the file says")
      ->check(CLI::IsMember({"auto", "io_uring", "epoll"}))
      ->type_name("METHOD");
  app.add_flag("--pin", arguments.pin, "Keep each reactor on a processor of its own");
  app.add_flag("--forget-lead", arguments.forget_lead,
               "As a member: the next lead that logs in is believed, whatever state it has. Only "
               "when the group's own state is lost, or restored from a backup");
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

// The token of --token-file. The error is one line.
std::optional<std::string> add_token(const std::string& file,
                                     group::ManagementConfiguration& management) {
  if (file.empty()) return std::nullopt;
  const auto token = group::read_token_file(file);
  if (!token) return fmt::format("--token-file: {}", token.error());
  management.tokens.push_back(
      {.name = "token-file", .role = group::Role::kInject, .digest = group::digest_of(*token)});
  return std::nullopt;
}

// Those that this process may use.
unsigned processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return static_cast<unsigned>(CPU_COUNT(&set));
  return std::max(1U, std::thread::hardware_concurrency());
}

// Has the daemon listen at these addresses instead, if there are any. In their order they have the
// rates of the ports in the file. The error is one line.
std::optional<std::string> replace_portals(const std::vector<std::string>& addresses,
                                           group::Configuration& c) {
  if (addresses.empty()) return std::nullopt;
  std::vector<group::PortalConfiguration> portals;
  for (const std::string& text : addresses) {
    const auto endpoint = Endpoint::parse(text, group::kDefaultPortalPort);
    if (!endpoint) {
      return fmt::format(
          "--portal {}: not an address; write one such as 127.0.0.1:3260 or "
          "[::1]:3260",
          text);
    }
    const std::size_t number = portals.size();
    portals.push_back({.listen = *endpoint});
    if (number < c.portals.size()) portals.back().port = c.portals[number].port;
  }
  c.portals = std::move(portals);
  return std::nullopt;
}

// Lets the command line override the file. The error is one line.
std::optional<std::string> apply(const Arguments& arguments, group::Configuration& c) {
  if (!arguments.state.empty()) c.state = arguments.state;
  if (arguments.reactors != 0) c.reactors = arguments.reactors;
  if (c.reactors == 0) {
    const auto most = static_cast<unsigned>(c.memory_limit_bytes / kLeastMemoryOfReactor);
    c.reactors = std::clamp(most, 1U, processors());
  }
  c.io = parse_io_method(arguments.io).value_or(c.io);
  if (arguments.free_ports) {
    for (group::PortalConfiguration& portal : c.portals) {
      portal.listen.set_port(0);
      portal.advertised.reset();  // It is another daemon's then.
      portal.as_reached = false;
    }
    c.management.listen.set_port(0);
  }
  if (arguments.forget_lead) {
    if (!c.lead) {
      return fmt::format(
          "--forget-lead: {} does not describe a member; it needs role = \"member\" "
          "in [group]",
          c.file);
    }
    c.lead->forget = true;
  }
  if (auto error = replace_portals(arguments.portals, c)) return error;
  if (const auto error = group::check_first_lead(c))
    return fmt::format("--portal: lead: {}", *error);
  if (!arguments.management.empty()) {
    const auto endpoint = Endpoint::parse(arguments.management, group::kDefaultManagementPort);
    if (!endpoint) {
      return fmt::format("--management {}: not an address; write one such as 127.0.0.1:8260",
                         arguments.management);
    }
    if (const auto error = group::check_protection(c.management, *endpoint)) {
      return fmt::format("--management: {}", *error);
    }
    c.management.listen = *endpoint;
  }
  if (const auto error = add_token(arguments.token_file, c.management)) return error;
  if (arguments.faults) {
    c.hardware.faults.enabled = true;
    for (group::MemberConfiguration& member : c.members) member.hardware.faults.enabled = true;
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

// Lines go through a queue: a thread that logs, a reactor above all, waits for no reader.
class QueueSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit QueueSink(LogQueue& queue)
      : queue_(queue),
        colored_(::isatty(STDERR_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    std::string text = fmt::to_string(line);
    if (colored_ && message.color_range_end > message.color_range_start) {
      text.insert(message.color_range_end, "\033[m");
      text.insert(message.color_range_start, color(message.level));
    }
    queue_.post(STDERR_FILENO, std::move(text));
  }
  void flush_() override {}
  static const char* color(spdlog::level::level_enum level) {
    if (level >= spdlog::level::err) return "\033[31m\033[1m";
    return level == spdlog::level::warn ? "\033[33m\033[1m" : "\033[32m";
  }

  LogQueue& queue_;
  bool colored_;
};

// The queue stays until the process ends: other threads may log until then.
void start_logging(LogQueue& queue, const std::string& level) {
  auto logger = std::make_shared<spdlog::logger>("sandbayd", std::make_shared<QueueSink>(queue));
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
  logger->set_level(spdlog::level::from_str(level));
  spdlog::set_default_logger(std::move(logger));
}

// Every connection and file takes a descriptor; the default limit is a shell's, not a server's.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void say_ready(const group::Group& group, const mgmt::Server& server, bool tls, LogQueue* out) {
  std::string line = "ready:";
  for (const auto& portal : group.portals()) line += fmt::format(" portal {}", portal.listen);
  out->post(STDOUT_FILENO, fmt::format("{} management {}://{}\n", line, tls ? "https" : "http",
                                       server.endpoint().to_string()));
}

// From now on the next signal has its default effect.
void let_signals_kill(const std::vector<int>& signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

// Warns if others can reach management without a token, or can listen to it, or if a daemon of root
// has no tokens.
void warn_of_exposure(const group::ManagementConfiguration& management, const Endpoint& endpoint) {
  if (group::is_loopback(endpoint)) {
    if (management.tokens.empty() && ::geteuid() == 0) {
      group::log_warning(
          "the daemon runs as root, and every program of root may manage it at {} without a token; "
          "run it as a user of its own, or add [[management.token]]",
          endpoint.to_string());
    }
    return;
  }
  if (management.tokens.empty()) {
    group::log_warning(
        "management at {} can be reached from other machines and asks for no password",
        endpoint.to_string());
  } else if (management.certificate.empty()) {
    group::log_warning(
        "management at {} can be reached from other machines, and tokens cross the "
        "network in plain text",
        endpoint.to_string());
  }
}

// With files that can be used, or null where none are named; the error is one line.
std::expected<std::shared_ptr<const mgmt::TlsContext>, std::string> load_tls(
    const group::Configuration& configuration) {
  const group::ManagementConfiguration& management = configuration.management;
  if (management.certificate.empty()) return nullptr;
  auto tls = mgmt::TlsContext::load(management.certificate, management.key);
  if (!tls) return std::unexpected(fmt::format("{}: {}", configuration.file, tls.error()));
  return std::move(*tls);
}

// What the file says now of who may manage: tokens, certificate and key.
struct Credentials {
  std::vector<group::ManagementToken> tokens;
  std::shared_ptr<const mgmt::TlsContext> tls;
};

// Blocks; the error is one line.
std::expected<Credentials, std::string> load_credentials(const Arguments& arguments,
                                                         const Endpoint& listens, bool secured) {
  const std::string& file = arguments.config;
  auto read = group::load_configuration(file);
  if (!read) return std::unexpected(read.error().front());
  if (const auto error = add_token(arguments.token_file, read->management)) {
    return std::unexpected(*error);
  }
  if (const auto error = group::check_protection(read->management, listens)) {
    return std::unexpected(fmt::format("{}: management: {}", file, *error));
  }
  auto tls = load_tls(*read);
  if (!tls) return std::unexpected(tls.error());
  if ((*tls != nullptr) != secured) {
    return std::unexpected(fmt::format(
        "{}: management.certificate: whether management speaks TLS changes with a restart alone",
        file));
  }
  return Credentials{.tokens = read->management.tokens, .tls = std::move(*tls)};
}

// Nobody's session notices. A mistake leaves everything as it was.
Task<void> reload(const Arguments* arguments, mgmt::Server* server, bool secured,
                  const ServiceManager* manager) {
  const std::string& file = arguments->config;
  const auto now = std::chrono::duration_cast<std::chrono::microseconds>(
      Executor::current().now().time_since_epoch());
  manager->tell(fmt::format("RELOADING=1\nMONOTONIC_USEC={}", now.count()));
  std::expected<Credentials, std::string> read;
  const Endpoint listens = server->endpoint();
  const Error error = co_await run_blocking(
      Executor::current(), file, [&] { read = load_credentials(*arguments, listens, secured); });
  if (error != Error::kNone) read = std::unexpected(std::string(describe(error)));
  if (!read) {
    group::log_error("SIGHUP: nothing is taken over: {}", read.error());
    co_return;
  }
  const std::size_t tokens = read->tokens.size();
  server->renew(std::move(read->tokens), std::move(read->tls));
  group::log_info(
      "SIGHUP: {} tokens{} of {} are taken over; all else counts from the next start on", tokens,
      secured ? ", certificate and key" : "", file);
}

struct Outcome {
  LogQueue* out;  // For standard output: an unread log does not hold up the ready line.
  const ServiceManager* manager;
  std::string io;  // How the kernel is asked, and why.
  std::optional<StartRefusal> refusal;
  bool lost = false;   // It left writes behind.
  bool wrong = false;  // A map is not right.
  bool starting = true;
  bool stopping = false;
  bool ended = false;
  Condition change;  // When one of these three changes.
};

// Sends again, for a while, if the queue of the manager is full.
Task<void> say_to_manager(const ServiceManager* manager, std::string lines) {
  constexpr int kAttempts = 50;
  for (int attempt = 0; attempt < kAttempts && !manager->tell(lines); ++attempt) {
    co_await Executor::current().sleep_for(std::chrono::milliseconds(100));
  }
}

// Starting and ending take as long as drives and what the cache holds need. As long as this reactor
// turns they go on, so that the manager shall wait.
Task<void> keep_manager_waiting(Outcome* outcome, Gate* gate) {
  const GateHold hold(*gate);
  while (!outcome->ended) {
    if (outcome->starting || outcome->stopping) outcome->manager->extend(kExtension);
    (void)co_await outcome->change.wait_until(Executor::current().now() + kExtendEvery);
  }
}

Task<void> serve_group(const Arguments* arguments, group::Group* group,
                       const group::Configuration* configuration,
                       std::shared_ptr<const mgmt::TlsContext> tls, Outcome* outcome) {
  const bool secured = tls != nullptr;
  auto server = mgmt::Server::start(*group, Executor::current(),
                                    {.listen = configuration->management.listen,
                                     .tokens = configuration->management.tokens,
                                     .tls = std::move(tls),
                                     .volume_paths = group::allowed_volume_paths(*configuration)});
  if (!server) {
    outcome->refusal = server.error();
    co_return;
  }
  warn_of_exposure(configuration->management, (*server)->endpoint());
  set_lock_patience(kLockPatienceServing);
  group::log_info("runs with {}", outcome->io);
  say_ready(*group, **server, secured, outcome->out);
  co_await say_to_manager(outcome->manager, "READY=1\nSTATUS=Serving");
  outcome->starting = false;
  co_await group->end_import();
  const std::vector<int> signals = {SIGTERM, SIGINT, SIGHUP};
  int signal = SIGHUP;
  while (signal == SIGHUP) {
    signal = co_await wait_for_signal(signals);
    if (signal != SIGHUP) break;
    co_await reload(arguments, server->get(), secured, outcome->manager);
    co_await say_to_manager(outcome->manager, "READY=1");
  }
  let_signals_kill({SIGTERM, SIGINT});
  outcome->manager->tell("STOPPING=1\nSTATUS=Flushing");
  outcome->stopping = true;
  outcome->change.notify_all();
  group::log_info("{}: shutting down", signal == SIGINT ? "SIGINT" : "SIGTERM");
  co_await (*server)->stop();
  // Sets may have come since.
  co_await group->end_import();
}

// Prints what the verification of all maps finds; whether all is well.
Task<bool> check_maps(group::Group* group) {
  bool right = true;
  const auto pools = co_await group->check_group();
  for (const group::PoolCheckInfo& pool : pools) {
    right = right && pool.wrong.empty();
    if (!pool.verified) {
      fmt::print("pool {}: cannot be verified: {}\n", pool.pool, pool.wrong.front());
      continue;
    }
    fmt::print("pool {}: {} pages, {} branches, {} snapshots, which keep {} chunks: {}\n",
               pool.pool, pool.pages, pool.branches, pool.snapshots, pool.kept_chunks,
               pool.wrong.empty() ? std::string("all is well")
                                  : fmt::format("{} findings", pool.wrong.size()));
    if (pool.doubtful_chunks != 0) {
      fmt::print(
          "  {} chunks are in doubt since an older map was accepted: medium errors until written\n",
          pool.doubtful_chunks);
    }
    for (const std::string& line : pool.wrong) fmt::print("  {}\n", line);
  }
  if (pools.empty()) fmt::print("There are no pools.\n");
  co_return right;
}

// Puts the export into the state directory and takes it in.
Task<Started> import_file(const Arguments* arguments, metadata::Store* store,
                          const group::Configuration* configuration) {
  const std::string& path = arguments->import;
  std::ifstream file(path, std::ios::binary);
  std::stringstream stream;
  if (file) stream << file.rdbuf();
  if (!file) {
    co_return fault_of_configuration(fmt::format("--import {}: cannot be read; name a file", path));
  }
  const std::string text = std::move(stream).str();
  const auto group = group::read_export(text);
  if (!group) co_return fault_of_configuration(fmt::format("--import {}: {}", path, group.error()));
  if (!configuration->uuid.empty() && configuration->uuid != group->uuid) {
    co_return fault_of_configuration(
        fmt::format("--import {}: is of group {}, but {} says group.uuid = {}", path, group->uuid,
                    configuration->file, configuration->uuid));
  }
  group::ImportRules rules;
  for (const metadata::Entry& entry : group->entries) rules.add(entry);
  if (!rules.mistake().empty()) {
    co_return fault_of_configuration(fmt::format("--import {}: {}", path, rules.mistake()));
  }
  const auto there = co_await group::provisioned_in(*store);
  if (!there) {
    co_return std::unexpected(
        fmt::format("the metadata cannot be read: {}", describe(there.error())));
  }
  if (!there->empty() && !arguments->force) {
    co_return fault_of_configuration(fmt::format(
        "--import {}: there are {} in {} already, of which an import would know nothing any more; "
        "name an empty state directory, or add --force",
        path, *there, configuration->state.string()));
  }
  group::ImportPart part;
  part.text = text;
  part.last = true;
  Error error =
      co_await group::write_import(group::import_path(configuration->state), std::move(part));
  if (error == Error::kNone) {
    error = co_await group::announce_import(*store, text.size(), group::sha256_of(text), false);
  }
  if (error != Error::kNone) {
    co_return std::unexpected(fmt::format("--import {}: {}", path, describe(error)));
  }
  const auto taken = co_await group::take_import(*store, configuration->state, configuration->uuid);
  if (!taken) co_return std::unexpected(taken.error());
  fmt::print(
      "group {} ({}): {} records taken in, of {}; start the daemon, and see sandbay group check\n",
      group->name, group->uuid, group->entries.size(), group->time);
  co_return Started{};
}

Task<void> serve_started(const Arguments* arguments, group::Group* group,
                         const group::Configuration* configuration,
                         std::shared_ptr<const mgmt::TlsContext> tls, Outcome* outcome) {
  if (arguments->check_map) {
    const bool right = co_await check_maps(group);
    outcome->wrong = !right;
  } else {
    co_await serve_group(arguments, group, configuration, std::move(tls), outcome);
  }
  co_await group->shutdown();
  outcome->lost = group->lost_writes();
}

Task<void> serve(const Arguments* arguments, group::Configuration configuration,
                 std::string metadata_path, std::shared_ptr<const mgmt::TlsContext> tls,
                 Outcome* outcome) {
  std::optional<StartRefusal>* const refusal = &outcome->refusal;
  auto store = co_await metadata::open_rocksdb_store(Executor::current(), {.path = metadata_path});
  if (!store) {
    *refusal = store.error();
    co_return;
  }
  if (!arguments->import.empty()) {
    const auto imported = co_await import_file(arguments, store->get(), &configuration);
    if (!imported) *refusal = imported.error();
    co_await (*store)->close();
    co_return;
  }
  if (arguments->check_map) {
    const auto waiting = co_await (*store)->get(std::string(group::kImportKey));
    if (waiting && *waiting) {
      *refusal = StartRefusal(
          StartRefusal::Kind::kConfiguration,
          "--check-map: an import waits for the next start, which takes it in; start the daemon "
          "first");
      co_await (*store)->close();
      co_return;
    }
  }
  const auto imported =
      co_await group::take_import(**store, configuration.state, configuration.uuid);
  if (!imported) {
    *refusal = imported.error();
    co_await (*store)->close();
    co_return;
  }
  auto group = co_await group::Group::start(configuration, **store);
  if (group) {
    co_await serve_started(arguments, group->get(), &configuration, std::move(tls), outcome);
    if ((*group)->left_behind()) {
      (void)group->release();
      (void)store->release();
      co_return;
    }
  } else {
    *refusal = group.error();
  }
  if (*refusal) {
    const std::string way = co_await group::way_before_import(**store, configuration.state);
    (*refusal)->text += way;
  }
  co_await (*store)->close();
}

Task<void> serve_managed(const Arguments* arguments, group::Configuration configuration,
                         std::string metadata_path, std::shared_ptr<const mgmt::TlsContext> tls,
                         Outcome* outcome) {
  Gate gate;
  if (outcome->manager->present() && gate.enter()) spawn(keep_manager_waiting(outcome, &gate));
  co_await serve(arguments, std::move(configuration), std::move(metadata_path), std::move(tls),
                 outcome);
  outcome->ended = true;
  outcome->change.notify_all();
  co_await gate.close();
}

int code_of(StartRefusal::Kind kind) {
  return kind == StartRefusal::Kind::kNotNow ? kNotNow : kRefused;
}

Started start_and_serve(const Arguments& arguments, group::Configuration configuration,
                        std::shared_ptr<const mgmt::TlsContext> tls, Outcome* outcome) {
  const auto patience = outcome->manager->present() ? kServicePatience : kPatience;
  set_lock_patience(patience);
  const auto state = group::StateDirectory::open(configuration.state, patience);
  if (!state) return std::unexpected(state.error());
  for (const group::MemberConfiguration& member : configuration.members) {
    auto made = state->make_member(member.name);
    if (!made) return made;
  }
  const bool serves = !arguments.check_map && arguments.import.empty();
  if (!serves) configuration.portals.clear();
  if (serves) {
    auto can_listen = group::can_listen(configuration, patience);
    if (!can_listen) return can_listen;
  }
  auto reactors = ReactorGroup::create(
      {.io = configuration.io,
       .count = configuration.reactors,
       .memory_limit_bytes = configuration.memory_limit_bytes,
       .pin = arguments.pin,
       .on_long_turn = [](const LongTurn& turn) { group::log_warning("{}", describe(turn)); }});
  if (!reactors) return std::unexpected(reactors.error());
  const std::string& why_epoll = (*reactors)->why_epoll();
  outcome->io = !why_epoll.empty() ? fmt::format("epoll and threads, because {}", why_epoll)
                : (*reactors)->io() == IoMethod::kEpoll ? "epoll and threads"
                                                        : "io_uring";
  (*reactors)->run([&] {
    return serve_managed(&arguments, configuration, state->metadata().string(), tls, outcome);
  });
  if (outcome->refusal) return std::unexpected(*outcome->refusal);
  return {};
}

int run(const Arguments& arguments, group::Configuration configuration,
        std::shared_ptr<const mgmt::TlsContext> tls) {
  raise_descriptor_limit();
  // Only this process's user may read the files that it makes, above all secrets in the metadata.
  ::umask(077);
  constexpr int kSignals[] = {SIGTERM, SIGINT, SIGHUP};
  block_signals(kSignals);
  std::signal(SIGPIPE, SIG_IGN);
  auto started = LogQueue::start();
  auto out = LogQueue::start();
  if (!started || !out) {
    refuse(started ? out.error() : started.error());
    return kNotNow;
  }
  static LogQueue* kept = nullptr;
  kept = started->release();
  LogQueue& log = *kept;
  start_logging(log, arguments.log_level);
  if (const auto exposed = group::exposed_secret(configuration)) group::log_warning("{}", *exposed);
  const ServiceManager manager = ServiceManager::from_environment();
  Outcome outcome{.out = out->get(), .manager = &manager, .io = {}, .refusal = {}};
  const auto served =
      start_and_serve(arguments, std::move(configuration), std::move(tls), &outcome);
  int code = 0;
  if (!served) {
    log.post(STDERR_FILENO, fmt::format("sandbayd: {}\n", served.error().text));
    manager.tell("STATUS=" + served.error().text);
    code = code_of(served.error().kind);
  } else if (outcome.wrong) {
    code = kWrongMap;
  } else if (outcome.lost) {
    log.post(STDERR_FILENO,
             "sandbayd: ended, but acknowledged writes could not be flushed; see above\n");
    code = kLostWrites;
  } else {
    group::log_info("ended");
  }
  std::fflush(stdout);
  (*out)->finish(kLogPatience);
  log.finish(kLogPatience);
  return code;
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
  auto tls = load_tls(*configuration);
  if (!tls) return refuse(tls.error());
  if (!arguments.check) return run(arguments, std::move(*configuration), std::move(*tls));
  const auto mistakes = group::mistakes_on_this_machine(*configuration);
  for (const std::string& mistake : mistakes) fmt::print(stderr, "sandbayd: {}\n", mistake);
  if (!mistakes.empty()) return kRefused;
  fmt::print("{}: good: group {}, {} portal{}, {} volume{}\n", configuration->file,
             configuration->group_name, configuration->portals.size(),
             configuration->portals.size() == 1 ? "" : "s", configuration->volumes.size(),
             configuration->volumes.size() == 1 ? "" : "s");
  return 0;
}
