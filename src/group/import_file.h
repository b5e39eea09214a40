// ImportFile: an export (export_document.h) that is on its way back into the metadata.
//
// The text is put into STATE/import, piece by piece, made durable and checked; then one record of
// the metadata (import) says that it counts: its size and its digest. It goes before the first
// piece of another is written. The next start takes it in before
// it looks at anything else: everything but the history goes, what the text holds comes, and the
// record goes last. So a crash at any point leaves either what was there, or an import that the
// next start does again from the beginning.
//
// Before the old records go, the start writes them as an export to STATE/before-import. The first
// start that succeeds deletes it once all pools use all their sets: a set may be newer than the
// imported map. Until then an import of that file brings the old records back, and a further import
// leaves the file as it is. The file lacks the changes of pool maps that only an NVRAM has, as
// after a kill; a pool that comes back from such records reports that loss.
#pragma once

#include <cstdint>
#include <expected>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "group/export_info.h"
#include "group/service.h"
#include "metadata/store.h"
#include "runtime/task.h"

namespace sandbay::group {

inline constexpr std::string_view kImportKey = "import";
inline constexpr std::string_view kBeforeImportKey = "before-import";  // The file is complete.
inline constexpr std::uint64_t kLargestImport = std::uint64_t{1} << 32;

std::string import_path(const std::filesystem::path& state);
std::string before_import_path(const std::filesystem::path& state);
// Whether a key is of an import itself, which no export has.
bool is_of_import(std::string_view key);

// Writes a piece to the file; the last makes it durable.
Task<Error> write_import(std::string path, ImportPart part);
// Where the volumes of an import may be. A relative path of a record begins at `state`.
struct ImportPlaces {
  std::filesystem::path state;
  std::vector<std::filesystem::path> folders;  // That management may use,
  std::set<std::filesystem::path> in_use;      // and what volumes here, or in the file, are on.
};
// Why the file must not count: it is not what was sent, is not an export, is of another group than
// `uuid` (unless that is empty), has a volume in a place that management may not use, or has a
// record with which no start succeeds (import_rules.h). Blocks.
std::optional<Refusal> refusal_of_import(const std::string& path, std::uint64_t byte_count,
                                         const std::string& sha256, const std::string& uuid,
                                         const ImportPlaces& places);
// Makes what is in the file count at the next start. `forget_before`: the records that an earlier
// import kept are not needed any more, so that this start keeps those that it replaces.
Task<Error> announce_import(metadata::Store& store, std::uint64_t byte_count, std::string sha256,
                            bool forget_before);
// It counts no more.
Task<Error> withdraw_import(metadata::Store& store);

// What holds `store` against an import that may only fill an empty one; empty: nothing.
Task<std::expected<std::string, Error>> provisioned_in(metadata::Store& store);

// At a start, before anything else looks at the store: an import of the group `uuid`, of any if
// that is empty. One line says what is wrong, and the way back if an import has begun to change the
// store; otherwise nothing has changed then. The store outlives it.
Task<std::expected<void, std::string>> take_import(metadata::Store& store,
                                                   std::filesystem::path state, std::string uuid);
// Deletes the records from before an import.
Task<void> forget_before_import(metadata::Store& store, std::filesystem::path state);
// How to go back to the records from before an import, as the rest of a line.
// Empty without any.
Task<std::string> way_before_import(metadata::Store& store, std::filesystem::path state);

}  // namespace sandbay::group
