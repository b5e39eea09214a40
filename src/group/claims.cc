// A few calls to stat() when a volume is made or opened, on threads for what can block.
#include "group/claims.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "runtime/blocking.h"

namespace sandbay::group {

namespace {

constexpr Duration kPathPatience = std::chrono::seconds(5);
constexpr Duration kClaimsPatience = std::chrono::seconds(2);

std::filesystem::path resolved(const std::filesystem::path& path) {
  std::error_code error;
  auto real = std::filesystem::absolute(path, error);
  if (!error) real = std::filesystem::weakly_canonical(real, error);
  return error ? path.lexically_normal() : real;
}

bool is_in(const std::filesystem::path& path, const std::filesystem::path& folder) {
  const auto relative = resolved(path).lexically_relative(resolved(folder));
  return !relative.empty() && *relative.begin() != "..";
}

// By a hard link from elsewhere; without other names it can only be where its path says.
bool is_linked_into(const std::filesystem::path& path, const std::filesystem::path& folder) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_nlink < 2) {
    return false;
  }
  const std::string identity = identity_of(path);
  std::error_code error;
  std::filesystem::recursive_directory_iterator entry(folder, error);
  for (const std::filesystem::recursive_directory_iterator end; !error && entry != end;
       entry.increment(error)) {
    if (identity_of(entry->path()) == identity) return true;
  }
  return false;
}

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Where a path leads; nothing if that cannot be found out, or if a link leads to what does not
// exist: opening it would make that.
std::optional<std::filesystem::path> where_it_leads(const std::filesystem::path& path) {
  std::error_code error;
  const auto real = std::filesystem::weakly_canonical(std::filesystem::absolute(path), error);
  if (error) return std::nullopt;
  const auto found = std::filesystem::symlink_status(real, error);
  if (std::filesystem::is_symlink(found)) return std::nullopt;
  if (error && found.type() != std::filesystem::file_type::not_found) return std::nullopt;
  return real;
}

}  // namespace

std::optional<std::string> outside_of(const std::filesystem::path& path,
                                      const std::vector<std::filesystem::path>& folders) {
  const auto real = where_it_leads(path);
  std::string named;
  for (const std::filesystem::path& folder : folders) {
    if (real && is_in(*real, folder)) return std::nullopt;
    named += (named.empty() ? "" : ", ") + folder.string();
  }
  return fmt::format(
      "{} is outside of what management may use ({}); add its folder to management.volume_paths in "
      "the daemon's file and restart the daemon",
      path.string(), named.empty() ? "nothing" : named);
}

std::optional<std::filesystem::path> file_behind(unsigned major, unsigned minor,
                                                 const std::filesystem::path& system) {
  const auto loop = system / "dev/block" / fmt::format("{}:{}", major, minor) / "loop";
  const std::string file = first_line(loop / "backing_file");
  if (file.empty() || first_line(loop / "offset") != "0" || first_line(loop / "sizelimit") != "0") {
    return std::nullopt;
  }
  return std::filesystem::path(file);
}

std::string identity_of(const std::filesystem::path& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) return "path " + resolved(path).string();
  if (S_ISBLK(status.st_mode)) {
    // A file that has been deleted is nobody else's.
    const auto file = file_behind(major(status.st_rdev), minor(status.st_rdev));
    std::error_code error;
    if (file && std::filesystem::exists(*file, error)) return identity_of(*file);
    return fmt::format("device {}", status.st_rdev);
  }
  return fmt::format("file {} {}", status.st_dev, status.st_ino);
}

std::optional<std::string> claim_of_group(const std::filesystem::path& path,
                                          const std::filesystem::path& state) {
  for (const char* const own : {"before-import", "import", "lock", "metadata", "volumes"}) {
    const auto kept = state / own;
    const bool same = identity_of(path) == identity_of(kept);
    if (same || is_in(path, kept) || is_linked_into(path, kept)) {
      return fmt::format("{} is the group's own, in {}; choose a file elsewhere", path.string(),
                         kept.string());
    }
  }
  return std::nullopt;
}

namespace {

// Shared with a thread that may hang.
struct Identities {
  std::mutex mutex;
  std::vector<Claim> claims;
};

Task<std::vector<Claim>> identify(Executor* home, std::vector<Claim> claims) {
  const auto shared = std::make_shared<Identities>();
  shared->claims = claims;
  const auto look = [shared, claims] {
    for (std::size_t i = 0; i < claims.size(); ++i) {
      if (!claims[i].identity.empty()) continue;
      std::string identity = identity_of(claims[i].path);
      const std::lock_guard lock(shared->mutex);
      shared->claims[i].identity = std::move(identity);
    }
  };
  // The names of those that did not answer in time are compared instead.
  (void)co_await run_blocking(*home, "claims", look, kClaimsPatience);
  const std::lock_guard lock(shared->mutex);
  co_return shared->claims;
}

}  // namespace

Task<std::optional<StartRefusal>> find_claim(Executor& home, std::filesystem::path path,
                                             std::vector<Claim> claims,
                                             std::filesystem::path state) {
  constexpr auto kClaimed = StartRefusal::Kind::kConfiguration;
  struct Asked {
    std::string identity;
    std::optional<std::string> of_group;
  };
  const auto asked = std::make_shared<Asked>();
  const auto ask = [asked, path, state] {
    asked->identity = identity_of(path);
    asked->of_group = claim_of_group(path, state);
  };
  const Error error = co_await run_blocking(home, path.string(), ask, kPathPatience);
  if (error != Error::kNone) {
    co_return StartRefusal(fmt::format(
        "{} cannot be looked at: {}", path.string(),
        error == Error::kTimedOut ? "its filesystem does not answer; try again when it does"
                                  : describe(error)));
  }
  const std::vector<Claim> known = co_await identify(&home, std::move(claims));
  for (const Claim& claim : known) {
    const bool same = claim.identity.empty()
                          ? claim.path.lexically_normal() == path.lexically_normal()
                          : claim.identity == asked->identity;
    if (same) co_return StartRefusal(kClaimed, fmt::format("{} {}", path.string(), claim.reason));
  }
  const std::optional<std::string>& of_group = asked->of_group;
  if (!of_group) co_return std::nullopt;
  co_return StartRefusal(kClaimed, *of_group);
}

}  // namespace sandbay::group
