// ExportReader: an export (export_document.h) record by record. However long the text is, memory
// holds one of its records and the text around them.
//
// The text is cut at the commas between the records before any of it becomes values: only strings,
// brackets and depth are looked at for that. Records that are longer, or have more parts, than the
// daemon writes are refused before they become values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "group/digest.h"
#include "group/export_info.h"

namespace sandbay::group {

class ExportReader {
 public:
  // Fills the span with the next bytes of the text, and says how many; 0 at its end.
  using Source = std::function<std::size_t(std::span<char>)>;
  explicit ExportReader(Source source);

  // The next record; nothing after the last one, when all of the text was right. The error is half
  // a sentence. Not to be called again after either.
  std::expected<std::optional<metadata::Entry>, std::string> next();

  // After the last record.
  struct Head {
    std::string uuid;
    std::string name;
    std::string time;  // When it was written.
    std::uint64_t count = 0;
  };
  const Head& head() const noexcept { return head_; }

 private:
  // A record as text: the value may be in hexadecimal.
  static constexpr std::size_t kLongestRecord =
      2 * metadata::kLongestValue + (std::size_t{1} << 16);
  static constexpr std::size_t kMostParts = std::size_t{1} << 18;
  static constexpr std::size_t kLongestFrame = std::size_t{1} << 16;
  static constexpr std::size_t kBytesAtOnce = std::size_t{1} << 16;

  std::optional<char> take();  // The next character; none at the end.
  void begin_records();
  std::optional<std::string> next_text();
  void finish();
  std::optional<metadata::Entry> next_or_throw();

  Source source_;
  std::string buffer_;
  std::size_t at_ = 0;
  std::string frame_;  // The text around the records.
  bool begun_ = false;
  bool ended_ = false;  // The records have.
  bool first_ = true;
  Digest digest_;
  std::string identity_;  // The UUID in the record of the group.
  Head head_;
};

}  // namespace sandbay::group
