// sandbay: the command line. Everything but `run`, `load` and `lab` goes through the daemon's REST
// interface.
//
// Exit codes: see Exit in client.h. One line on standard error says what failed; with --json, an
// object on standard output.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "group/units.h"
#include "group/version.h"
#include "lab/load.h"
#include "runtime/printable.h"
#include "tools/commands.h"
#include "tools/completion.h"

namespace sandbay::cli {

namespace {

int complain(bool json, std::string_view message, Exit exit) {
  const int code = static_cast<int>(exit);
  if (json) {
    print_json({{"error", {{"code", word_of(exit)}, {"message", message}, {"exit", code}}}});
    return code;
  }
  std::fflush(stdout);
  std::fputs(fmt::format("sandbay: {}\n", printable(message)).c_str(), stderr);
  return code;
}

// Also if the rest of the command line is wrong.
bool asks_for_json(const std::vector<std::string>& words) {
  return std::ranges::find(words, "--json") != words.end();
}

// The words behind the first -- of run are another program's; takes them out of `words`.
std::vector<std::string> take_command(const CLI::App& app, std::vector<std::string>& words) {
  const auto nouns = app.get_subcommands([](const CLI::App*) { return true; });
  const auto noun = std::ranges::find_first_of(
      words, nouns, {}, {}, [](const CLI::App* each) { return each->get_name(); });
  const auto mark = std::find(noun, words.end(), "--");
  if (mark == words.end() || *noun != "run") return {};
  std::vector<std::string> command(mark + 1, words.end());
  words.erase(mark, words.end());
  return command;
}

// Where the command line stopped making sense, and what would go on from there.
std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* at = &app;
  std::string path;
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    path += (path.empty() ? "" : " ") + at->get_name();
  }
  const std::string help = fmt::format("see sandbay {}--help", path.empty() ? path : path + " ");
  const auto unknown = app.remaining(true);
  if (!unknown.empty()) {
    return fmt::format("\"{}\" is not known here; {}", lab::without_password(unknown.front()),
                       help);
  }
  std::string next;
  for (const CLI::App* each : at->get_subcommands([](const CLI::App*) { return true; })) {
    next += (next.empty() ? "" : ", ") + each->get_name();
  }
  if (!next.empty() && dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    return path.empty() ? fmt::format("a noun is missing ({}); {}", next, help)
                        : fmt::format("{} needs a verb ({}); {}", path, next, help);
  }
  return fmt::format("{}{}{}; {}", path, path.empty() ? "" : ": ", error.what(), help);
}

void add_completion(CLI::App& app) {
  CLI::App* const verb = app.add_subcommand("completion", "Print the completion of a shell");
  verb->group("");
  const auto shell = std::make_shared<std::string>();
  verb->add_option("SHELL", *shell)->required()->check(CLI::IsMember({"bash"}));
  verb->callback([&app, shell] { fmt::print("{}", bash_completion(app)); });
}

void add_common_options(CLI::App& app, Settings& settings) {
  app.add_option("--management", settings.management.url, "Where the daemon's management listens")
      ->envname("SANDBAY_MANAGEMENT")
      ->type_name("URL")
      ->capture_default_str();
  app.add_option("--token-file", settings.management.token_file,
                 "File whose first line is the token to show; else SANDBAY_TOKEN is the token")
      ->envname("SANDBAY_TOKEN_FILE")
      ->type_name("FILE");
  app.add_option("--ca-file", settings.management.ca_file,
                 "Certificates, in PEM format, of who vouches for the daemon's")
      ->envname("SANDBAY_CA_FILE")
      ->type_name("FILE");
  app.add_flag("--plain", settings.management.plain,
               "Show the token also over http:// to another machine");
  app.add_flag("--json", settings.json, "Print the daemon's answer as JSON");
  app.set_version_flag("--version", fmt::format("sandbay {}", group::version()));
  app.require_subcommand(1);
  app.fallthrough();  // --json and --management may also stand after the verb.
  app.footer(
      "sandbay NOUN --help lists the verbs of a noun, sandbay NOUN VERB --help explains one.\n"
      "Sizes are written 512MiB, 100GiB, 1TB. See sandbay(1).");
}

void add_commands(CLI::App& app, Settings& settings) {
  add_group_commands(app, settings);
  add_drive_commands(app, settings);
  add_raid_commands(app, settings);
  add_cache_commands(app, settings);
  add_member_commands(app, settings);
  add_pool_commands(app, settings);
  add_volume_commands(app, settings);
  add_snapshot_commands(app, settings);
  add_target_commands(app, settings);
  add_portal_commands(app, settings);
  add_reservation_commands(app, settings);
  add_session_commands(app, settings);
  add_access_commands(app, settings);
  add_task_commands(app, settings);
  add_fault_commands(app, settings);
  add_event_commands(app, settings);
  add_audit_commands(app, settings);
  add_apply_command(app, settings);
  add_run_command(app, settings);
  add_load_command(app, settings);
  add_lab_commands(app, settings);
  add_completion(app);
}

int run(int argument_count, char** argument_values) {
  CLI::App app("Manages a Sandbay daemon and puts load on iSCSI targets.", "sandbay");
  Settings settings;
  add_common_options(app, settings);
  add_commands(app, settings);
  std::vector<std::string> words(argument_values + 1, argument_values + argument_count);
  settings.command = take_command(app, words);
  const bool json = asks_for_json(words);
  std::ranges::reverse(words);  // As the library wants them.
  try {
    app.parse(std::move(words));
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      throw Failure(fmt::format("standard output cannot be written: {}", std::strerror(errno)));
    }
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    // An exit code of run is the command's but for a few.
    const bool runs = app.got_subcommand("run");
    return complain(json, explain(app, error), runs ? Exit::kNotRun : Exit::kUsage);
  } catch (const Failure& failure) {
    return complain(json, failure.what(), failure.exit);
  } catch (const nlohmann::json::exception& error) {
    return complain(json,
                    fmt::format("{} answers, but not as this version expects: {}",
                                settings.management.url, error.what()),
                    Exit::kFailed);
  } catch (const std::exception& error) {
    return complain(json, fmt::format("cannot go on: {}", error.what()), Exit::kFailed);
  }
  return settings.exit_code;
}

}  // namespace
}  // namespace sandbay::cli

int main(int argument_count, char** argument_values) {
  return sandbay::cli::run(argument_count, argument_values);
}
