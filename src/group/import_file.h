// ImportFile: an export (export_document.h) that is on its way back into the metadata.
//
// The text is put into STATE/import, piece by piece, and made durable; then one record of the
// metadata (import) says that it counts: its size and its digest. The next start takes it in before
// it looks at anything else: everything but the history goes, what the text holds comes, and the
// record goes last. So a crash at any point leaves either what was there, or an import that the
// next start does again from the beginning.
#pragma once

#include <cstdint>
#include <expected>
#include <filesystem>
#include <string>

#include "group/export_info.h"
#include "metadata/store.h"
#include "runtime/task.h"

namespace sandbay::group {

inline constexpr std::string_view kImportKey = "import";
inline constexpr std::uint64_t kLargestImport = std::uint64_t{1} << 32;

std::string import_path(const std::filesystem::path& state);

// Writes a piece to the file; the last makes it durable.
Task<Error> write_import(std::string path, ImportPart part);
// Makes what is in the file count at the next start.
Task<Error> announce_import(metadata::Store& store, std::uint64_t byte_count, std::string sha256);

// What holds `store` against an import that may only fill an empty one; empty: nothing.
Task<std::expected<std::string, Error>> provisioned_in(metadata::Store& store);

// At a start, before anything else looks at the store. One line says what is wrong. The store
// outlives it.
Task<std::expected<void, std::string>> take_import(metadata::Store& store,
                                                   std::filesystem::path state);

}  // namespace sandbay::group
