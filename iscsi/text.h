// Text keys and values as bytes on the wire (RFC 7143 section 6.1): key=value pairs that each end
// in a null byte, numbers, ranges, lists and binary values, and their reassembly from PDUs that
// carry the C bit (section 6.2).
//
// Parsing is pure, bounded, and refuses instead of guessing. Values are looked at as their key
// asks for; here they are any bytes but null.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sandbay::iscsi {

inline constexpr std::size_t kMaximumKeyBytes = 63;
inline constexpr std::size_t kMaximumSimpleValueBytes = 255;
// Longest value of any key: a CHAP challenge of 1024 bytes in hexadecimal is 2050.
inline constexpr std::size_t kMaximumValueBytes = 8192;
// What a logical text data segment may hold: section 6.1 asks for 8 KiB, 64 KiB with large items.
inline constexpr std::size_t kMaximumTextBytes = 64 * 1024;
// The most in one PDU of a login: nothing has been declared yet (section 13.12).
inline constexpr std::size_t kLoginSegmentBytes = 8192;
inline constexpr std::size_t kMaximumPairs = 512;

// The reserved values of section 6.2.
inline constexpr std::string_view kNone = "None";
inline constexpr std::string_view kRejectValue = "Reject";
inline constexpr std::string_view kIrrelevant = "Irrelevant";
inline constexpr std::string_view kNotUnderstood = "NotUnderstood";

struct KeyValue {
  std::string key;
  std::string value;
  bool operator==(const KeyValue&) const = default;
};

enum class TextError : std::uint8_t {
  kTooLong,       // More bytes or pairs than the limits above.
  kNoDelimiter,   // The last pair does not end in a null byte.
  kNoEqualsSign,  // A pair without "=".
  kBadKey,        // Not a standard-label of at most 63 bytes.
  kValueTooLong,
};
std::string_view describe(TextError error);

// The pairs of one logical text data segment, in order. Empty pairs (runs of null bytes, as some
// initiators pad with) are skipped; a missing last null is an error.
std::expected<std::vector<KeyValue>, TextError> parse_text(std::string_view text);

// Appends "key=value" and the null byte.
void append_pair(std::string& text, std::string_view key, std::string_view value);
std::string format_text(std::span<const KeyValue> pairs);

// Section 6.1 "standard-label"; "#" is let through for X#NodeArchitecture and its like.
bool is_key_name(std::string_view name);
// One of Reject, Irrelevant, NotUnderstood.
bool is_reserved_answer(std::string_view value);

// numerical-value: decimal or 0x hexadecimal, below 2^64.
std::optional<std::uint64_t> parse_number(std::string_view value);
std::optional<bool> parse_boolean(std::string_view value);  // "Yes" or "No".
// The parts between commas; views into `value`. An empty value is a list of one empty part.
std::vector<std::string_view> split_list(std::string_view value);

// binary-value in hexadecimal (0x…) or base64 (0b…), of at most `maximum` bytes. A hexadecimal
// constant of odd length has an implied leading zero digit.
std::optional<std::vector<std::byte>> parse_binary(std::string_view value, std::size_t maximum);
std::string format_hexadecimal(std::span<const std::byte> bytes);

// Puts a logical text data segment together from the data segments of successive PDUs.
class TextAssembler {
 public:
  explicit TextAssembler(std::size_t limit_bytes = kMaximumTextBytes) : limit_(limit_bytes) {}

  // False: more than the limit; what was gathered is dropped.
  [[nodiscard]] bool append(std::span<const std::byte> segment);
  bool empty() const noexcept { return text_.empty(); }
  // Takes what was gathered and starts again.
  std::string take();
  void clear() { text_.clear(); }

 private:
  std::size_t limit_;
  std::string text_;
};

// The reverse: hands a text out in pieces of at most `segment_bytes`, each to be sent in a PDU of
// its own with the C bit set while empty() is false afterwards.
class TextSplitter {
 public:
  TextSplitter() = default;
  explicit TextSplitter(std::string text) : text_(std::move(text)) {}

  bool empty() const noexcept { return position_ == text_.size(); }
  // The next piece, possibly empty if everything has been handed out.
  std::string take(std::size_t segment_bytes);

 private:
  std::string text_;
  std::size_t position_ = 0;
};

}  // namespace sandbay::iscsi
