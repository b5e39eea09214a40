// Export and import of the metadata as management sees them.
//
// An export is one listing, which the store answers from one moment; before it every pool's map is
// brought into the store, as far as that can be done, so that what is listed needs no NVRAM.
#include <fmt/format.h>

#include <limits>

#include "group/export_document.h"
#include "group/import_file.h"
#include "group/running_group.h"

namespace sandbay::group {

namespace {

std::unexpected<Refusal> refuse(Refusal::Code code, std::string message) {
  return std::unexpected(Refusal{.code = code, .message = std::move(message)});
}

}  // namespace

Task<Answer<ExportedGroup>> RunningGroup::export_now() {
  for (const auto& pool : pools_->all()) {
    if (pool->pool() == nullptr) continue;
    const Error error = co_await pool->pool()->checkpoint();
    if (error == Error::kNone) continue;
    co_return refuse(Refusal::Code::kFailed, fmt::format("pool \"{}\" cannot be exported: {}",
                                                         pool->name(), unwritten(error)));
  }
  auto entries = co_await store_.list("", "", std::numeric_limits<std::size_t>::max());
  if (!entries) {
    co_return refuse(Refusal::Code::kFailed,
                     fmt::format("the metadata cannot be read: {}", describe(entries.error())));
  }
  std::erase_if(*entries, [](const metadata::Entry& entry) {
    return is_history(entry.first) || entry.first == kImportKey;
  });
  co_return ExportedGroup{.time = wall_time(), .entries = std::move(*entries)};
}

Task<Answer<ExportedGroup>> RunningGroup::export_group() {
  auto answer = co_await alone(export_now());
  co_return answer;
}

std::optional<Refusal> RunningGroup::refusal_to_import(const ImportPart& part) const {
  const auto refusal = [](Refusal::Code code, std::string message) {
    return Refusal{.code = code, .message = std::move(message)};
  };
  if (part.offset > 0 && part.offset != import_bytes_) {
    return refusal(Refusal::Code::kConflict,
                   fmt::format("import: {} bytes are there, and the part begins at {}; begin anew "
                               "at 0",
                               import_bytes_, part.offset));
  }
  if (part.offset + part.text.size() > kLargestImport) {
    return refusal(Refusal::Code::kInvalid,
                   fmt::format("import: is larger than {} bytes", kLargestImport));
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

Task<Answer<void>> RunningGroup::import_now(ImportPart part) {
  if (auto refusal = refusal_to_import(part)) co_return std::unexpected(std::move(*refusal));
  const std::uint64_t end = part.offset + part.text.size();
  const bool last = part.last;
  const std::string sha256 = part.sha256;
  import_bytes_ = 0;
  Error error = co_await write_import(import_path(configuration_.state), std::move(part));
  if (error == Error::kNone && !last) import_bytes_ = end;
  if (error == Error::kNone && last) error = co_await announce_import(store_, end, sha256);
  if (error != Error::kNone) {
    co_return refuse(
        Refusal::Code::kFailed,
        fmt::format("import: {}", last ? unwritten(error) : std::string(describe(error))));
  }
  if (last) {
    events_.add({.severity = Severity::kWarning,
                 .kind = "import",
                 .text = "an export was imported: it takes the place of everything at the next "
                         "start"});
  }
  co_return Answer<void>{};
}

Task<Answer<void>> RunningGroup::import_part(ImportPart part) {
  auto answer = co_await alone(import_now(std::move(part)));
  co_return answer;
}

}  // namespace sandbay::group
