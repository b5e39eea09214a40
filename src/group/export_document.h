// The readable JSON that a group's metadata are exported as, and its way back.
//
//   {"sandbay_export": 1, "version": …, "time": …, "group": UUID, "name": …,
//    "records": [{"key": "volume/UUID", "value": {…}}, …,
//                {"pool": UUID, "key_hex": …, "value_hex": …}, …],
//    "count": …, "sha256": of all keys and values}
//
// A record whose value is JSON stands as that. The records of pools' maps are bytes (see
// pool/map_records.h) and stand in hexadecimal. It holds secrets: those of access records.
//
// An import takes from it what was provisioned, and not the state of the hardware; see
// import_file.cc. It holds the metadata at one moment. It brings everything back on the
// same drives as long as nothing was changed since; what hosts wrote after it to pages that were
// new is not in it, and what lies in NVRAM is not.
#pragma once

#include <expected>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "group/digest.h"
#include "group/export_info.h"
#include "group/records.h"

namespace sandbay::group {

inline constexpr int kExportFormat = 1;

std::string export_text(const ExportedGroup& group);

// Writes the same text piece by piece.
class ExportWriter {
 public:
  ExportWriter(WallTime time, const GroupRecord& group);
  void add(const metadata::Entry& entry);  // Leaves out the history.
  void finish();
  // The text since the last call.
  std::string take() { return std::exchange(text_, {}); }
  std::size_t byte_count() const noexcept { return text_.size(); }

 private:
  Digest digest_;
  std::size_t count_ = 0;
  std::string text_;
};

struct ImportedGroup {
  std::string uuid;
  std::string name;
  std::string time;  // When it was written.
  std::vector<metadata::Entry> entries;
};
// All of it at once; see ExportReader for what may be large. The error is half a sentence.
std::expected<ImportedGroup, std::string> read_export(std::string_view text);

// Of a text, in hexadecimal.
std::string sha256_of(std::string_view text);

// Below which the records of a pool's map are.
std::string map_key(std::string_view pool);

// Whether a key is of the history, which no export has.
bool is_history(std::string_view key);

}  // namespace sandbay::group
