// Errors have words, errno values have errors, and big-endian fields stand where they should.
#include "runtime/error.h"

#include <catch2/catch.hpp>
#include <cerrno>
#include <set>
#include <string>

#include "runtime/byte_order.h"

namespace sandbay {
namespace {

TEST_CASE("Every error has a description of its own", "[error]") {
  std::set<std::string_view> seen;
  for (auto value = std::uint8_t{0}; value <= static_cast<std::uint8_t>(Error::kDataCorrupt);
       ++value) {
    const std::string_view words = describe(static_cast<Error>(value));
    REQUIRE(words != "unknown error");
    REQUIRE(seen.insert(words).second);
  }
}

TEST_CASE("errno values become errors, positive or negated", "[error]") {
  const struct {
    int value;
    Error error;
  } rows[] = {
      {0, Error::kNone},
      {ECANCELED, Error::kCancelled},
      {ETIMEDOUT, Error::kTimedOut},
      {EPIPE, Error::kClosed},
      {ECONNRESET, Error::kReset},
      {ECONNREFUSED, Error::kRefused},
      {EHOSTUNREACH, Error::kUnreachable},
      {EADDRINUSE, Error::kAddressInUse},
      {ENOMEM, Error::kNoMemory},
      {ENOSPC, Error::kNoSpace},
      {EROFS, Error::kReadOnly},
      {EACCES, Error::kPermission},
      {ENOENT, Error::kNotFound},
      {EEXIST, Error::kExists},
      {EINVAL, Error::kInvalid},
      {ERANGE, Error::kOutOfRange},
      {EOPNOTSUPP, Error::kUnsupported},
      {EAGAIN, Error::kNotReady},
      {EIO, Error::kHardware},
  };
  for (const auto& row : rows) {
    CAPTURE(row.value);
    REQUIRE(error_from_errno(row.value) == row.error);
    REQUIRE(error_from_errno(-row.value) == row.error);
  }
}

TEST_CASE("Big-endian fields", "[byte_order]") {
  std::byte bytes[16] = {};
  put_big_endian<std::uint32_t>(bytes, 1, 0x01020304);
  REQUIRE(bytes[0] == std::byte{0});
  REQUIRE(bytes[1] == std::byte{1});
  REQUIRE(bytes[4] == std::byte{4});
  REQUIRE(big_endian<std::uint32_t>(bytes, 1) == 0x01020304);
  REQUIRE(big_endian<std::uint16_t>(bytes, 2) == 0x0203);
  put_big_endian<std::uint64_t>(bytes, 8, 0x1122334455667788);
  REQUIRE(bytes[8] == std::byte{0x11});
  REQUIRE(big_endian<std::uint64_t>(bytes, 8) == 0x1122334455667788);
  put_big_endian_24(bytes, 5, 0xABCDEF);
  REQUIRE(bytes[5] == std::byte{0xAB});
  REQUIRE(big_endian_24(bytes, 5) == 0xABCDEF);
  REQUIRE(big_endian<std::uint8_t>(bytes, 7) == 0xEF);
}

}  // namespace
}  // namespace sandbay
