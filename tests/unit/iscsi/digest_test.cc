// CRC32C: the vectors printed in RFC 3720 appendix B.4 (as in RFC 7143's "CRC Examples"), ISA-L
// against the table, and the remainder that section 13.1 names.
#include "iscsi/digest.h"

#include <rapidcheck.h>

#include <array>
#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

namespace sandbay::iscsi {
namespace {

std::array<std::byte, 4> stored(std::uint32_t digest) {
  std::array<std::byte, 4> bytes{};
  store_digest(digest, bytes);
  return bytes;
}

std::array<std::byte, 4> bytes_of(unsigned a, unsigned b, unsigned c, unsigned d) {
  return {std::byte(a), std::byte(b), std::byte(c), std::byte(d)};
}

}  // namespace

TEST_CASE("CRC32C gives the digests printed in the iSCSI RFC", "[iscsi][digest]") {
  std::array<std::byte, 32> data{};
  CHECK(stored(crc32c(data)) == bytes_of(0xaa, 0x36, 0x91, 0x8a));
  data.fill(std::byte{0xff});
  CHECK(stored(crc32c(data)) == bytes_of(0x43, 0xab, 0xa8, 0x62));
  for (unsigned index = 0; index < data.size(); ++index) data[index] = std::byte(index);
  CHECK(stored(crc32c(data)) == bytes_of(0x4e, 0x79, 0xdd, 0x46));
  for (unsigned index = 0; index < data.size(); ++index) data[index] = std::byte(31 - index);
  CHECK(stored(crc32c(data)) == bytes_of(0x5c, 0xdb, 0x3f, 0x11));
  // An iSCSI SCSI Read (10) Command PDU.
  Bhs bhs{};
  const unsigned command[] = {0x01, 0xc0, 0, 0, 0, 0, 0,    0, 0,    0, 0, 0,    0, 0, 0, 0,  //
                              0x14, 0,    0, 0, 0, 0, 0x04, 0, 0,    0, 0, 0x14, 0, 0, 0, 0x18,
                              0x28, 0,    0, 0, 0, 0, 0,    0, 0x02, 0, 0, 0,    0, 0, 0, 0};
  for (std::size_t index = 0; index < bhs.size(); ++index) bhs[index] = std::byte(command[index]);
  CHECK(stored(header_digest(bhs)) == bytes_of(0x56, 0x3a, 0x96, 0xd9));
}

TEST_CASE("ISA-L and the table agree however a segment is cut", "[iscsi][digest]") {
  REQUIRE(rc::check([](const std::vector<std::uint8_t>& data, std::size_t cut) {
    const auto bytes = std::as_bytes(std::span(data));
    RC_ASSERT(crc32c(bytes) == crc32c_by_table(bytes));
    const std::size_t first = data.empty() ? 0 : cut % (data.size() + 1);
    Crc32c pieces;
    pieces.update(bytes.first(first));
    pieces.update(bytes.subspan(first));
    RC_ASSERT(pieces.value() == crc32c(bytes));
    std::vector<std::byte> padded_bytes(bytes.begin(), bytes.end());
    padded_bytes.resize(padded(static_cast<std::uint32_t>(bytes.size())));
    RC_ASSERT(data_digest(bytes) == crc32c_by_table(padded_bytes));
    auto* const start = const_cast<std::byte*>(bytes.data());
    const std::array slices = {IoSlice{start, first}, IoSlice{start + first, data.size() - first}};
    RC_ASSERT(data_digest(std::span<const IoSlice>(slices)) == data_digest(bytes));
  }));
}

TEST_CASE("A segment with its digest has the RFC's constant remainder", "[iscsi][digest]") {
  REQUIRE(rc::check([](const std::vector<std::uint8_t>& data) {
    std::vector<std::byte> bytes(data.size() + 4);
    const auto source = std::as_bytes(std::span(data));
    std::copy(source.begin(), source.end(), bytes.begin());
    store_digest(crc32c(source), std::span(bytes).last<4>());
    RC_ASSERT(load_digest(std::span<const std::byte>(bytes).last<4>()) == crc32c(source));
    // 0x1c2d19ed before the final complement, in the RFC's bit order; ours is reflected.
    const std::uint32_t remainder = ~crc32c(bytes);
    std::uint32_t reflected = 0;
    for (unsigned bit = 0; bit < 32; ++bit) {
      reflected |= ((remainder >> bit) & 1U) << (31 - bit);
    }
    RC_ASSERT(reflected == 0x1c2d19edU);
  }));
}

TEST_CASE("A header digest covers additional headers", "[iscsi][digest]") {
  const Bhs bhs{std::byte{1}};
  const std::array<std::byte, 8> ahs{std::byte{0}, std::byte{5}, std::byte{2}};
  std::vector<std::byte> all(bhs.begin(), bhs.end());
  all.insert(all.end(), ahs.begin(), ahs.end());
  CHECK(header_digest(bhs, ahs) == crc32c_by_table(all));
}

}  // namespace sandbay::iscsi
