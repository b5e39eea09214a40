// Sizes, rates and times as people write them: `512MiB`, `1TB`, `1Gbit/s`, `5ms`.
//
// A number (digits, at most one decimal point) and a unit stand together without a space. Units
// of 1024 are KiB MiB GiB TiB PiB, units of 1000 are kB MB GB TB PB; a letter alone is refused,
// because people read it both ways. A fraction is accepted where the result is a whole number of
// bytes, bytes a second or nanoseconds. What the formatting functions write, except the rounded
// one, reads back as the same value.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

#include "runtime/clock.h"

namespace sandbay::group {

// The error is half a sentence: what is wrong and what would be accepted.
template <class T>
using Parsed = std::expected<T, std::string>;

Parsed<std::uint64_t> parse_size(std::string_view text);  // Bytes.
Parsed<std::uint64_t> parse_rate(std::string_view text);  // Bytes a second.
Parsed<Duration> parse_duration(std::string_view text);

std::string format_size(std::uint64_t byte_count);          // "1GiB", "1TB", "1025B"
std::string format_size_rounded(std::uint64_t byte_count);  // "1.00 GiB", "976 KiB"
std::string format_rate(std::uint64_t bytes_per_second);    // "125MB/s"
std::string format_duration(Duration duration);             // "15s", "1500ms"

}  // namespace sandbay::group
