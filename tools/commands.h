// Commands: the nouns of the command line. Each function adds one noun with its verbs to the
// application; a verb's callback asks the daemon, prints, and reports failure by throwing Failure,
// which main turns into one line and an exit code.
#pragma once

#include <fmt/core.h>

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "runtime/printable.h"
#include "tools/client.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's.
class App;
}

namespace sandbay::cli {

// The options before the noun.
struct Settings {
  Management management;
  bool json = false;
  int exit_code = 0;                 // Set by commands that do not talk to the daemon.
  std::vector<std::string> command;  // The words behind -- of run.
};

// `settings` is read when a verb runs and outlives the application.
void add_group_commands(CLI::App& app, Settings& settings);
void add_export_verbs(CLI::App& noun, Settings& settings);  // Of the noun group.
void add_drive_commands(CLI::App& app, Settings& settings);
void add_raid_commands(CLI::App& app, Settings& settings);
void add_cache_commands(CLI::App& app, Settings& settings);
void add_fault_commands(CLI::App& app, Settings& settings);
void add_audit_commands(CLI::App& app, Settings& settings);
void add_event_commands(CLI::App& app, Settings& settings);
void add_member_commands(CLI::App& app, Settings& settings);
void add_pool_commands(CLI::App& app, Settings& settings);
void add_task_commands(CLI::App& app, Settings& settings);
void add_volume_commands(CLI::App& app, Settings& settings);
void add_snapshot_commands(CLI::App& app, Settings& settings);
void add_target_commands(CLI::App& app, Settings& settings);
void add_portal_commands(CLI::App& app, Settings& settings);
void add_reservation_commands(CLI::App& app, Settings& settings);
void add_session_commands(CLI::App& app, Settings& settings);
void add_access_commands(CLI::App& app, Settings& settings);
void add_apply_command(CLI::App& app, Settings& settings);
void add_run_command(CLI::App& app, Settings& settings);
void add_load_command(CLI::App& app, Settings& settings);
void add_lab_commands(CLI::App& app, Settings& settings);

// The answer, or a Failure.
nlohmann::json expect(Client::Answer answer);
std::string expect(std::expected<std::string, Refused> answer);
// Prints lines for people on standard output. Names and messages of others may hold anything.
template <class... Values>
void say(fmt::format_string<Values...> form, Values&&... values) {
  fmt::print("{}", printable(fmt::format(form, std::forward<Values>(values)...), '\n'));
}
void print_json(const nlohmann::json& value);
// For a verb without an answer: `text`, or with --json {"done": true}.
void print_done(const Settings& settings, std::string_view text);
// Shows how far a background task of a pool is, until it has ended. `kind` as in `task list`.
void wait_for_task(const Settings& settings, const std::string& kind, const std::string& object);
// The findings of a verification of one pool's map.
void print_check(const nlohmann::json& pool);
// "1.00 GiB"
std::string human_size(const nlohmann::json& bytes);
std::string yes_no(bool value);
// A string, as it is.
std::string text_of(const nlohmann::json& value);
// "a, b", of an array of strings.
std::string joined(const nlohmann::json& names);

// How long a command waits between two looks at work that it waits for.
inline constexpr auto kLookEvery = std::chrono::milliseconds(200);

}  // namespace sandbay::cli
