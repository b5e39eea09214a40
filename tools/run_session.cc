// The daemon is asked over REST alone, as any other client would.
#include "tools/run_session.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/uuid.h"

namespace sandbay::cli {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int kCannotRun = 126;  // As a shell has it.
constexpr int kNoProgram = 127;
constexpr std::chrono::seconds kTimeToStart{60};
constexpr std::chrono::seconds kTimeToEnd{60};
constexpr std::size_t kLinesOfLog = 30;
constexpr std::size_t kMostEvents = 30;

struct Daemon {
  pid_t id = 0;
  fs::path log;
  std::string url;
  std::vector<std::string> portals;
};

[[noreturn]] void fail_run(const std::string& message) { throw Failure(message, Exit::kNotRun); }

// A new file for its owner alone.
void write_private_file(const fs::path& path, const std::string& text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const bool written =
      file >= 0 && ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  if (file >= 0) ::close(file);
  if (!written) fail_run(fmt::format("{}: {}", path.string(), std::strerror(error)));
}

std::string new_token() {
  std::array<std::uint8_t, 32> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    fail_run("the system gives no random numbers for a token");
  }
  return format_hex(bytes);
}

// ---- the daemon ---------------------------------------------------------------------------------

std::vector<std::string> last_lines(const fs::path& log, std::size_t most) {
  std::ifstream stream(log);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
    if (lines.size() > most) lines.erase(lines.begin());
  }
  return lines;
}

// Why it ended before it was ready: its own line, which names object, problem and remedy.
[[noreturn]] void refuse_as(const Daemon& daemon, int code) {
  constexpr std::string_view kOwn = "sandbayd: ";
  const auto lines = last_lines(daemon.log, kLinesOfLog);
  const auto own = std::find_if(lines.rbegin(), lines.rend(),
                                [&](const std::string& line) { return line.starts_with(kOwn); });
  if (own != lines.rend()) fail_run(own->substr(kOwn.size()));
  fail_run(fmt::format("sandbayd ended with {} before it was ready{}{}", code,
                       lines.empty() ? "" : ": ", lines.empty() ? "" : lines.back()));
}

// The line that says "ready"; what there is of it at its end or when the time is over.
std::string first_line(int descriptor) {
  std::string line;
  const auto end = std::chrono::steady_clock::now() + kTimeToStart;
  while (!line.ends_with('\n')) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    pollfd wanted{.fd = descriptor, .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || ::poll(&wanted, 1, static_cast<int>(left.count())) == 0) break;
    char byte = 0;
    if (::read(descriptor, &byte, 1) <= 0) break;
    line += byte;
  }
  return line;
}

Daemon start_daemon(Worker& worker, const RunPlan& plan, const std::string& token_file) {
  Daemon daemon{.log = plan.folder / "sandbayd.log"};
  Process process{
      .words = {plan.daemon, "--config", plan.config, "--state", (plan.folder / "state").string(),
                "--token-file", token_file, "--free-ports", "--management", "127.0.0.1:0"},
      .inherited = plan.lock,
      .own_session = true,
      .death_signal = SIGTERM};
  std::vector<std::string>& words = process.words;
  for (const std::string& portal : plan.portals) words.insert(words.end(), {"--portal", portal});
  if (plan.faults) words.emplace_back("--faults");
  const int log = ::open(daemon.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  int output[2] = {-1, -1};
  if (log < 0 || ::pipe2(output, O_CLOEXEC) != 0) {
    fail_run(fmt::format("{}: {}", daemon.log.string(), std::strerror(errno)));
  }
  process.output = output[1];
  process.error = log;
  const auto started = worker.start(process);
  ::close(output[1]);
  ::close(log);
  if (!started) {
    fail_run(fmt::format("{}: {}; install the daemon beside this program", process.words.front(),
                         std::strerror(started.error())));
  }
  daemon.id = *started;
  std::istringstream line(first_line(output[0]));  // Stays open: it may write more.
  std::string word;
  while (line >> word) {
    if (word == "portal") daemon.portals.emplace_back();
    if (word == "portal") line >> daemon.portals.back();
    if (word == "management") line >> daemon.url;
  }
  if (daemon.url.empty()) {
    const auto code = worker.ended(daemon.id);
    const int how = code ? *code : worker.wait(daemon.id, std::chrono::seconds(1));
    refuse_as(daemon, how);
  }
  return daemon;
}

// ---- what the command finds ---------------------------------------------------------------------

// Where this machine reaches a portal that listens at every address.
std::string reachable(std::string portal) {
  if (portal.starts_with("0.0.0.0:")) return "127.0.0.1" + portal.substr(7);
  if (portal.starts_with("[::]:")) return "[::1]" + portal.substr(4);
  return portal;
}

// Unless the target that it shares with others has access records already.
void admit_all(const Client& client, const std::string& volume) {
  const std::string path = volume_path(volume) + "/access";
  if (!expect(client.get(path)).at("access").empty()) return;
  expect(client.post(path, {{"initiator", "*"}}));
}

using Variables = std::vector<std::pair<std::string, std::string>>;

// A run around this one has its own.
void forget_outer_run() {
  std::vector<std::string> names = {"SANDBAY_TARGET", "SANDBAY_TOKEN_FILE"};
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string_view variable = *each;
    if (!variable.starts_with("SANDBAY_URL")) continue;
    names.emplace_back(variable.substr(0, variable.find('=')));
  }
  for (const std::string& name : names) ::unsetenv(name.c_str());
}

// Makes the volumes and adds the rules. The first volume is the first of those that were asked for.
Variables prepare(const Client& client, const Daemon& daemon, const RunPlan& plan) {
  json first;
  for (const NewVolume& volume : plan.volumes) {
    json body{{"name", volume.name}, {"size", volume.bytes}, {"thin", true}};
    if (!plan.own_config.empty()) body["thin_warning"] = 0;  // A full volume is nothing unusual.
    const json made = expect(client.post(kVolumes, body));
    admit_all(client, volume.name);
    if (first.is_null()) first = made;
  }
  for (const FaultRule& rule : plan.rules) {
    const auto added = client.post("/api/v1/faults", {{"rule", rule.text}});
    if (!added) fail_run(fmt::format("{}: {}", rule.where, added.error().message));
  }
  const json all = expect(client.get(kVolumes)).at("volumes");
  if (first.is_null() && !all.empty()) first = all.front();
  const std::string portal = daemon.portals.empty() ? "" : reachable(daemon.portals.front());
  Variables variables = {
      {"SANDBAY_API", daemon.url}, {"SANDBAY_MANAGEMENT", daemon.url}, {"SANDBAY_PORTAL", portal}};
  const auto url_of = [&](const json& volume) {
    return fmt::format("iscsi://{}/{}/{}", portal, text_of(volume.at("target")),
                       volume.at("lun").dump());
  };
  for (const json& volume : all) {
    variables.emplace_back(variable_of(text_of(volume.at("name"))), url_of(volume));
  }
  if (first.is_null()) {
    say_error("there is no volume, so SANDBAY_URL is not set; ask for one with --volume");
  } else {
    variables.emplace_back("SANDBAY_URL", url_of(first));
    variables.emplace_back("SANDBAY_TARGET", text_of(first.at("target")));
  }
  return variables;
}

// ---- afterwards ---------------------------------------------------------------------------------

// Whether the maps of all pools are right.
bool group_is_right(const Client& client) {
  const auto answer = client.post("/api/v1/group/check", json::object());
  if (!answer) {
    say_error("the group cannot be checked: " + answer.error().message);
    return false;
  }
  bool right = true;
  for (const json& pool : answer->at("pools")) {
    for (const json& line : pool.at("wrong")) {
      say_error(fmt::format("pool {}: {}", text_of(pool.at("pool")), text_of(line)));
      right = false;
    }
  }
  return right;
}

// Possible reasons why a command has failed.
void tell_what_happened(const Client& client) {
  if (const auto answer = client.get("/api/v1/faults")) {
    for (const json& fault : answer->at("faults")) {
      if (fault.at("fired") == 0) continue;
      say_error(fmt::format("fault fired {} times: {}", fault.at("fired").dump(),
                            text_of(fault.at("rule"))));
    }
  }
  if (const auto answer = client.get("/api/v1/events?since=0")) {
    const json& events = answer->at("events");
    for (std::size_t i = events.size() - std::min(events.size(), kMostEvents); i < events.size();
         ++i) {
      if (events[i].at("severity") == "information") continue;
      say_error(fmt::format("event, {}: {}", text_of(events[i].at("severity")),
                            text_of(events[i].at("text"))));
    }
  }
}

void tell_log(const fs::path& log) {
  say_error("the end of the daemon's log:");
  for (const std::string& line : last_lines(log, kLinesOfLog)) {
    if (line.find(" info audit: ") != std::string::npos) continue;  // Requests of this program.
    std::fputs(fmt::format("  {}\n", printable(line)).c_str(), stderr);
  }
}

// Then the command asked for what is wrong.
bool faults_have_fired(const Client& client) {
  const auto answer = client.get("/api/v1/faults");
  return answer && answer->at("firings") != 0;
}

// Ends the daemon; what the run ends with, of which the command's own failure comes first.
int finish(Worker& worker, const Client& client, const Daemon& daemon, const RunPlan& plan,
           int code) {
  // Somebody wanted the end, and needs no explanation.
  const bool asked = code == kSignalled + SIGINT || code == kSignalled + SIGTERM;
  worker.end_all(daemon.id);
  bool good = true;
  if (const auto ended = worker.ended(daemon.id)) {
    say_error(fmt::format("sandbayd ended with {} before the command did", *ended));
    good = false;
  } else {
    const bool right = group_is_right(client);
    const bool faults = plan.rules_given || faults_have_fired(client);
    good = right || faults;
    if (code != 0 && !asked) tell_what_happened(client);
    ::kill(daemon.id, SIGTERM);
    const int how = worker.wait(daemon.id, kTimeToEnd);
    if (how != 0) say_error(fmt::format("sandbayd ended with {}", how));
    good = good && (how == 0 || faults);
  }
  if ((code != 0 && !asked) || !good) tell_log(daemon.log);
  return code != 0 || good ? code : static_cast<int>(Exit::kNotRun);
}

}  // namespace

std::string variable_of(std::string name) {
  std::ranges::transform(name, name.begin(), [](unsigned char c) {
    return std::isalnum(c) != 0 ? static_cast<char>(std::toupper(c)) : '_';
  });
  return "SANDBAY_URL_" + name;
}

void say_error(const std::string& line) {
  std::fputs(fmt::format("sandbay: run: {}\n", printable(line)).c_str(), stderr);
}

int run_session(Worker& worker, const Management& settings, const RunPlan& plan) {
  Management management = settings;
  management.token_file = (plan.folder / "token").string();
  if (!plan.own_config.empty()) write_private_file(plan.config, plan.own_config);
  const std::string token = new_token();
  write_private_file(management.token_file, token + "\n");
  const Daemon daemon = start_daemon(worker, plan, management.token_file);
  management.url = daemon.url;
  const Client client(management);
  Variables variables = prepare(client, daemon, plan);
  variables.emplace_back("SANDBAY_TOKEN", token);
  forget_outer_run();
  const auto ended = worker.run({.words = plan.command, .environment = std::move(variables)});
  if (!ended) {
    say_error(fmt::format("{}: {}", plan.command.front(), std::strerror(ended.error())));
    return ended.error() == ENOENT ? kNoProgram : kCannotRun;
  }
  return finish(worker, client, daemon, plan, *ended);
}

}  // namespace sandbay::cli
