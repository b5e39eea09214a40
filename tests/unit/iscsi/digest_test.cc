// CRC32C: the vectors printed in RFC 3720 appendix B.4 (as in RFC 7143's "CRC Examples"), ISA-L
// against the table, and the remainder that section 13.1 names.
#include "iscsi/digest.h"

#include <rapidcheck.h>

#include <array>
#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

#include "../block/on_executor.h"
#include "../block/payload.h"

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

// A byte at a time, by a table of the polynomial 0x1edc6f41, its bits reversed.
std::uint32_t crc32c_by_table(std::span<const std::byte> bytes) {
  static const auto kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t index = 0; index < table.size(); ++index) {
      std::uint32_t remainder = index;
      for (int bit = 0; bit < 8; ++bit) {
        remainder = (remainder >> 1U) ^ ((remainder & 1U) != 0 ? 0x82f63b78U : 0U);
      }
      table[index] = remainder;
    }
    return table;
  }();
  std::uint32_t state = 0xffffffffU;
  for (const std::byte byte : bytes) {
    state = (state >> 8U) ^ kTable[(state ^ std::to_integer<std::uint32_t>(byte)) & 0xffU];
  }
  return ~state;
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
  }));
}

Task<void> digest_of_segments(Executor& home) {
  Random random(home.random()());
  for (std::size_t byte_count = 0; byte_count < 300; ++byte_count) {
    std::vector<std::byte> bytes = testing::random_bytes(byte_count, random);
    const BufferList data = testing::make_payload(home, bytes, testing::Cut::kAnywhere, random);
    bytes.resize(padded(static_cast<std::uint32_t>(byte_count)));
    CHECK(data_digest(data) == crc32c_by_table(bytes));
  }
  co_return;
}

TEST_CASE("A data digest covers the padding, however the data lie", "[iscsi][digest]") {
  testing::run_in_world(1, digest_of_segments);
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
