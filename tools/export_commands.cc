// sandbay group export, sandbay group import
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "group/export_document.h"
#include "tools/commands.h"
#include "tools/progress.h"

namespace sandbay::cli {

namespace {

using nlohmann::json;

// What a request holds of it; the daemon takes bodies of 1 MiB.
constexpr std::size_t kPartBytes = std::size_t{256} << 10;

// Only its owner can read the file, which holds secrets; what was there is replaced at once.
void write_private(const std::string& path, std::string_view text) {
  const std::string fresh = path + ".new";
  ::unlink(fresh.c_str());
  const int file =
      ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
  bool good = file >= 0;
  for (std::size_t done = 0; good && done < text.size();) {
    const ssize_t count = ::write(file, text.data() + done, text.size() - done);
    good = count > 0;
    if (good) done += static_cast<std::size_t>(count);
  }
  good = good && ::fsync(file) == 0 && ::rename(fresh.c_str(), path.c_str()) == 0;
  const int error = errno;
  if (file >= 0) ::close(file);
  if (good) return;
  ::unlink(fresh.c_str());
  throw Failure(fmt::format("{} cannot be written: {}", path, std::strerror(error)));
}

void export_to(const Settings& settings, const std::string& path) {
  const std::string text =
      expect(Client(settings.management).post_for_text("/api/v1/group/export", json::object()));
  const auto group = group::read_export(text);
  if (!group) throw Failure("what the daemon exports " + group.error());
  if (path.empty() || path == "-") {
    fmt::print("{}", text);
    return;
  }
  write_private(path, text);
  if (settings.json) {
    return print_json({{"file", path}, {"records", group->entries.size()}, {"group", group->name}});
  }
  say("{}: {} records of group {}; keep it safe, it holds the secrets of access records\n", path,
      group->entries.size(), group->name);
}

void import_from(const Settings& settings, const std::string& path, bool force) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream stream;
  if (file) stream << file.rdbuf();
  if (!file) throw Failure(fmt::format("{} cannot be read; name a file", path));
  const std::string text = std::move(stream).str();
  const auto group = group::read_export(text);
  if (!group) throw Failure(fmt::format("{} {}", path, group.error()));
  const Client client(settings.management);
  Progress progress;
  for (std::size_t offset = 0; offset < text.size(); offset += kPartBytes) {
    json part{{"text", text.substr(offset, kPartBytes)}, {"offset", offset}, {"force", force}};
    if (offset + kPartBytes >= text.size()) {
      part["last"] = true;
      part["sha256"] = group::sha256_of(text);
    }
    progress.update(fmt::format("import of {}", path),
                    static_cast<double>(offset) / static_cast<double>(text.size()));
    expect(client.post("/api/v1/group/import", part));
  }
  progress.end();
  if (settings.json) {
    return print_json({{"records", group->entries.size()},
                       {"group", group->name},
                       {"time", group->time},
                       {"counts_from", "the daemon's next start"}});
  }
  say("{}: {} records of group {}, of {}, have arrived; restart the daemon to use them, and then "
      "run sandbay group check. Data written since then to new pages is not in the export.\n",
      path, group->entries.size(), group->name, group->time);
}

void withdraw_import(const Settings& settings) {
  expect(Client(settings.management).remove("/api/v1/group/import"));
  print_done(settings, "No import waits for the daemon's next start.");
}

}  // namespace

void add_export_verbs(CLI::App& noun, Settings& settings) {
  const auto path = std::make_shared<std::string>();
  const auto force = std::make_shared<bool>(false);
  CLI::App* verb = noun.add_subcommand(
      "export", "Write everything that was provisioned as readable JSON, with its secrets");
  verb->add_option("FILE", *path, "Where to; standard output if it is left out");
  verb->callback([&settings, path] { export_to(settings, *path); });
  verb = noun.add_subcommand(
      "import", "Bring an export back: it counts from the daemon's next start; the group is empty");
  const auto withdraw = std::make_shared<bool>(false);
  CLI::Option* const file = verb->add_option("FILE", *path, "What group export has written");
  verb->add_flag("--force", *force, "Also in place of what is provisioned, which is forgotten");
  CLI::Option* const no_more =
      verb->add_flag("--withdraw", *withdraw, "Take back one that waits for the next start");
  no_more->excludes(file);
  verb->callback([&settings, path, force, withdraw] {
    if (*withdraw) return withdraw_import(settings);
    if (path->empty()) throw CLI::RequiredError("FILE, or --withdraw,");
    import_from(settings, *path, *force);
  });
}

}  // namespace sandbay::cli
