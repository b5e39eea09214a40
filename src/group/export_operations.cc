// Export and import of the metadata as management sees them.
//
// An export is one listing, which the store answers from one moment. For as long as it takes every
// pool's map is held, whole in the store, so that what is listed needs no NVRAM, and says so.
#include <fmt/core.h>

#include <limits>

#include "group/export_document.h"
#include "group/import_file.h"
#include "group/log.h"
#include "group/place.h"
#include "group/records.h"
#include "group/running_group.h"
#include "group/units.h"
#include "runtime/blocking.h"

namespace sandbay::group {

Task<std::optional<Refusal>> RunningGroup::hold_pools(std::vector<pool::Pool*>* held) {
  for (const auto& pool : pools_->all()) {
    if (pool->pool() == nullptr) {
      log_warning("pool {} is not open: its map is exported without what an NVRAM may have of it",
                  pool->name());
      continue;
    }
    const Error error = co_await pool->pool()->hold();
    if (error != Error::kNone) {
      co_return Refusal{.code = Refusal::Code::kFailed,
                        .message = fmt::format("pool \"{}\" cannot be exported: {}", pool->name(),
                                               unwritten(error))};
    }
    held->push_back(pool->pool());
  }
  co_return std::nullopt;
}

// A record of what is to be cleared must not come back later: what was written meanwhile would be
// taken for what was there before the volume.
std::optional<Refusal> RunningGroup::refusal_to_export(
    const std::vector<metadata::Entry>& entries) const {
  for (const auto& [key, value] : entries) {
    if (!key.starts_with(kClearingPrefix)) continue;
    for (const auto& [name, volume] : volumes_) {
      if (!key.starts_with(clearing_key(volume->uuid()))) continue;
      const auto place = places_.find(volume->uuid());
      const std::uint64_t left =
          place == places_.end()
              ? 0
              : place->second->clearing.left_blocks() * volume->record().specification.block_bytes;
      return Refusal{.code = Refusal::Code::kConflict,
                     .message = fmt::format(
                         "volume \"{}\": {} of its place are still being cleared of what was there "
                         "before it, and an import would clear them again, with what was written "
                         "meanwhile; export when that has ended, see sandbay volume show",
                         name, format_size_rounded(left))};
    }
  }
  return std::nullopt;
}

Task<Answer<ExportedGroup>> RunningGroup::export_now() {
  std::vector<pool::Pool*> held;
  std::optional<Refusal> refusal = co_await hold_pools(&held);
  Result<std::vector<metadata::Entry>> entries;
  if (!refusal) entries = co_await store_.list("", "", std::numeric_limits<std::size_t>::max());
  for (pool::Pool* const pool : held) pool->release();
  if (refusal) co_return std::unexpected(std::move(*refusal));
  if (!entries) {
    co_return refuse(Refusal::Code::kFailed,
                     fmt::format("the metadata cannot be read: {}", describe(entries.error())));
  }
  refusal = refusal_to_export(*entries);
  if (refusal) co_return std::unexpected(std::move(*refusal));
  for (const pool::Pool* const pool : held) pool->forget_log(*entries);
  std::erase_if(*entries, [](const metadata::Entry& entry) {
    return is_history(entry.first) || is_of_import(entry.first);
  });
  co_return ExportedGroup{.time = wall_time(), .entries = std::move(*entries)};
}

Task<Answer<ExportedGroup>> RunningGroup::export_group() { return alone(export_now()); }

std::optional<Refusal> RunningGroup::refusal_to_import(const ImportPart& part) const {
  const auto refusal = [](Refusal::Code code, std::string message) {
    return Refusal{.code = code, .message = std::move(message)};
  };
  if (part.offset > 0 && part.offset != import_bytes_) {
    return refusal(
        Refusal::Code::kConflict,
        fmt::format("import: {} bytes have arrived, but the part begins at {}; begin again at 0",
                    import_bytes_, part.offset));
  }
  if (part.offset + part.text.size() > kLargestImport) {
    return refusal(Refusal::Code::kInvalid,
                   fmt::format("import: is larger than {} bytes", kLargestImport));
  }
  const auto lead = exports_ != nullptr ? exports_->fence().kept() : std::nullopt;
  if (lead && !lead->open && !part.force) {
    return refusal(Refusal::Code::kConflict,
                   fmt::format("import: group {} leads this member, which would let in any lead "
                               "afterwards; take it out of that group first, or force it",
                               format_uuid(lead->group)));
  }
  const bool empty = volumes_.empty() && snapshots_.empty() && pools_->all().empty();
  if (!empty && !part.force) {
    return refusal(
        Refusal::Code::kConflict,
        fmt::format("import: the group has {} volumes and {} pools already, of which an import "
                    "would know nothing any more; import into an empty state directory, or force "
                    "it",
                    volumes_.size(), pools_->all().size()));
  }
  return std::nullopt;
}

// A start that finds a file which it cannot take in goes no further, so all that can be wrong with
// it is found here.
Task<std::optional<Refusal>> RunningGroup::announce_checked(std::uint64_t byte_count,
                                                            std::string sha256) {
  ImportPlaces places{.state = configuration_.state,
                      .folders = allowed_volume_paths(configuration_)};
  for (const auto& [name, volume] : volumes_) places.in_use.insert(volume->path());
  for (const VolumeConfiguration& volume : configuration_.volumes) {
    places.in_use.insert(configuration_.state / volume.specification.path);
  }
  std::optional<Refusal> wrong;
  const Error read = co_await run_blocking(Executor::current(), "import", [&] {
    wrong = refusal_of_import(import_path(configuration_.state), byte_count, sha256,
                              configuration_.uuid, places);
  });
  if (read != Error::kNone) {
    co_return Refusal{
        .code = Refusal::Code::kFailed,
        .message = fmt::format("import: the text cannot be read: {}", describe(read))};
  }
  if (wrong) co_return wrong;
  const bool settled = pools_->unsettled().empty();
  book_.refuse_changes(true);
  const Error error = co_await announce_import(store_, byte_count, std::move(sha256), settled);
  if (error != Error::kNone) {
    book_.refuse_changes(false);
    co_return Refusal{.code = Refusal::Code::kFailed,
                      .message = fmt::format("import: {}", unwritten(error))};
  }
  import_announced_ = true;
  events_.add({.severity = Severity::kWarning,
               .kind = "import",
               .text = "an export was imported: it takes the place of everything at the next "
                       "start"});
  co_return std::nullopt;
}

Task<Answer<void>> RunningGroup::import_now(ImportPart part) {
  if (auto refusal = refusal_to_import(part)) co_return std::unexpected(std::move(*refusal));
  const std::uint64_t end = part.offset + part.text.size();
  const bool last = part.last;
  const std::string sha256 = part.sha256;
  import_bytes_ = 0;
  // What was announced before is not there any more as soon as the file is written.
  if (part.offset == 0 && import_announced_) {
    const Error withdrawn = co_await withdraw_import(store_);
    if (withdrawn != Error::kNone) {
      co_return refuse(Refusal::Code::kFailed, fmt::format("import: {}", unwritten(withdrawn)));
    }
    import_announced_ = false;
    book_.refuse_changes(false);
    events_.add({.severity = Severity::kInformation,
                 .kind = "import",
                 .text = "the import that waited for the next start is withdrawn"});
  }
  const Error error = co_await write_import(import_path(configuration_.state), std::move(part));
  if (error != Error::kNone) {
    co_return refuse(Refusal::Code::kFailed, fmt::format("import: {}", describe(error)));
  }
  if (!last) {
    import_bytes_ = end;
    co_return Answer<void>{};
  }
  auto refusal = co_await announce_checked(end, sha256);
  if (refusal) co_return std::unexpected(std::move(*refusal));
  co_return Answer<void>{};
}

std::optional<Refusal> RunningGroup::refusal_while_importing() const {
  if (!import_announced_) return std::nullopt;
  return Refusal{.code = Refusal::Code::kConflict,
                 .message =
                     "an import waits for the daemon's next start, and knows nothing of "
                     "what is changed before; restart the daemon, or withdraw the import"};
}

Task<void> RunningGroup::end_import() {
  if (way_before_import_.empty()) co_return;
  const std::string unsettled = pools_->unsettled();
  if (!unsettled.empty()) {
    co_return log_warning("{}: is kept: {}", before_import_path(configuration_.state), unsettled);
  }
  co_await forget_before_import(store_, configuration_.state);
  way_before_import_.clear();
}

Task<Answer<void>> RunningGroup::import_part(ImportPart part) {
  return alone(import_now(std::move(part)));
}

}  // namespace sandbay::group
