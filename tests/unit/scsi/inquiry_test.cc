// INQUIRY, its vital product data, and READ CAPACITY: SPC-4 6.6 and 7.8, SBC-3 5.18, 5.19 and 6.6.
#include <map>
#include <numeric>
#include <set>

#include "fake_transport.h"

namespace sandbay::testing {
namespace {

using scsi::Additional;

std::string text(const Reply& reply, std::size_t at, std::size_t length) {
  std::string result;
  for (std::size_t i = 0; i < length; ++i) result += static_cast<char>(reply.in(at + i));
  return result;
}

Task<void> standard_data(Bench& bench) {
  const Reply reply = co_await bench.send_to_unit(inquiry(255));
  CHECK(reply.good());
  REQUIRE(reply.data.size() == 96);
  CHECK(reply.data_in_bytes == 96);
  CHECK(reply.in(0) == 0);
  CHECK(reply.in(1) == 0);
  CHECK(reply.in(2) == 6);
  CHECK((reply.in(3) & 0x0FU) == 2);
  CHECK(reply.in(4) == 91);
  CHECK(text(reply, 8, 8) == "SANDBAY ");
  CHECK(text(reply, 16, 16) == "VOLUME          ");
  std::set<unsigned> versions;
  for (std::size_t at = 58; at < 74; at += 2) {
    versions.insert(big_endian<std::uint16_t>(reply.data, at));
  }
  for (const unsigned version : {0x00A0U, 0x0460U, 0x04C0U, 0x0960U}) {
    CHECK(versions.contains(version));
  }
}

Task<void> every_allocation_length(Bench& bench) {
  const Reply whole = co_await bench.send_to_unit(inquiry(512));
  for (unsigned length = 0; length < 256; ++length) {
    const Reply reply = co_await bench.send_to_unit(inquiry(length));
    CHECK(reply.good());
    CHECK(reply.data_in_bytes == std::min<std::size_t>(length, 96));
    CHECK(reply.data ==
          Bytes(whole.data.begin(), whole.data.begin() + std::min<std::ptrdiff_t>(length, 96)));
  }
}

Task<void> page_without_evpd(Bench& bench) {
  const Reply reply = co_await bench.send_to_unit(cdb_of({0x12, 0, 1, 1, 0}));
  CHECK(reply.illegal(Additional::kInvalidFieldInCdb));
  CHECK(reply.field_byte() == 2);
}

Task<void> supported_pages(Bench& bench) {
  const Reply list = co_await bench.send_to_unit(inquiry(255, 0x00));
  REQUIRE(list.good());
  unsigned last = 0;
  std::set<unsigned> pages;
  for (std::size_t at = 4; at < list.data.size(); ++at) {
    CHECK((at == 4 || list.in(at) > last));
    last = list.in(at);
    pages.insert(last);
    const Reply page = co_await bench.send_to_unit(inquiry(1024, last));
    CHECK(page.good());
    CHECK(page.in(1) == last);
    CHECK(page.data.size() == 4U + big_endian<std::uint16_t>(page.data, 2));
  }
  CHECK(pages == std::set<unsigned>{0x00, 0x80, 0x83, 0x86, 0x88, 0xB0, 0xB1, 0xB2});
  const Reply other = co_await bench.send_to_unit(inquiry(255, 0x8F));
  CHECK(other.illegal(Additional::kInvalidFieldInCdb));
}

using Designators = std::multimap<std::pair<unsigned, unsigned>, Bytes>;

// By association and type.
Designators designators_of(const Reply& page) {
  Designators result;
  std::size_t at = 4;
  while (at < page.data.size()) {
    const std::size_t length = page.in(at + 3);
    const unsigned association = (page.in(at + 1) >> 4U) & 0x03U;
    const auto first = page.data.begin() + static_cast<std::ptrdiff_t>(at + 4);
    result.emplace(std::pair(association, page.in(at + 1) & 0x0FU),
                   Bytes(first, first + static_cast<std::ptrdiff_t>(length)));
    at += 4 + length;
  }
  CHECK(at == page.data.size());
  return result;
}

Task<void> identification(Bench& bench) {
  const Reply page = co_await bench.send_to_unit(inquiry(1024, 0x83));
  const Designators found = designators_of(page);
  const auto naa = found.find({0, 3});
  REQUIRE(naa != found.end());
  CHECK(naa->second.size() == 16);
  CHECK(std::to_integer<unsigned>(naa->second[0]) >> 4U == 6);
  CHECK(found.contains({0, 1}));  // T10 vendor identification, of the unit
  CHECK(found.contains({1, 4}));  // Relative target port
  CHECK(found.contains({1, 5}));  // Target port group
  CHECK(found.contains({1, 8}));  // SCSI names of the port and of the device
  CHECK(found.contains({2, 8}));
}

// Vendor-specific designators (type 0) are not accepted, and what comes first is taken.
Task<void> accepted_designators(Bench& bench) {
  const Reply page = co_await bench.send_to_unit(inquiry(1024, 0x83));
  const Designators found = designators_of(page);
  CHECK(found.contains({0, 3}));
  for (const auto& [kind, value] : found) {
    CHECK(kind.second != 0);
    CHECK(!value.empty());
  }
  CHECK((page.in(4 + 1) & 0x3FU) == 0x03);  // The first: NAA, of the logical unit.
}

Task<void> collect_vendor_designator(Bench& bench) {
  static std::set<std::string> seen;
  const Reply page = co_await bench.send_to_unit(inquiry(1024, 0x83));
  const Designators found = designators_of(page);
  const Bytes& value = found.find({0, 1})->second;
  std::string first;
  for (std::size_t i = 8; i < 16; ++i) first += static_cast<char>(value[i]);
  CHECK(seen.insert(first).second);
}

Task<void> limits(Bench& bench) {
  const Reply page = co_await bench.send_to_unit(inquiry(255, 0xB0));
  REQUIRE(page.data.size() == 64);
  CHECK(page.in(3) == 0x3C);
  CHECK((page.in(4) & 1U) == 0);                                 // WSNZ
  CHECK(big_endian<std::uint32_t>(page.data, 8) == 65536);       // 32 MiB
  CHECK(big_endian<std::uint32_t>(page.data, 20) == 1U << 20U);  // UNMAP blocks
  CHECK(big_endian<std::uint32_t>(page.data, 24) == 256);        // UNMAP descriptors
  CHECK(big_endian<std::uint64_t>(page.data, 36) == 1U << 20U);  // WRITE SAME
  CHECK(page.in(5) == 255);                                      // COMPARE AND WRITE
}

Task<void> provisioning_page_thin(Bench& bench) {
  const Reply page = co_await bench.send_to_unit(inquiry(255, 0xB2));
  CHECK((page.in(5) & 0xE2U) == 0xE2);
  CHECK(page.in(6) == 2);
  const Reply capacity = co_await bench.send_to_unit(cdb_16(0x9E, 0, 32, 0x10));
  CHECK((capacity.in(14) & 0x80U) != 0);
}

Task<void> provisioning_page_thick(Bench& bench) {
  const Reply page = co_await bench.send_to_unit(inquiry(255, 0xB2));
  CHECK(page.in(5) == 0);
  CHECK(page.in(6) == 0);
  const Reply capacity = co_await bench.send_to_unit(cdb_16(0x9E, 0, 32, 0x10));
  CHECK((capacity.in(14) & 0xC0U) == 0);
  const Reply unmap =
      co_await bench.send_to_unit(cdb_of({0x42, 0, 0, 0, 0, 0, 0, 0, 24}), {.out = filled(24, 0)});
  CHECK(unmap.illegal(Additional::kInvalidOperationCode));
  const Reply same = co_await bench.send_to_unit(cdb_16(0x93, 0, 8, 0x08), {.out = filled(512, 0)});
  CHECK(same.illegal(Additional::kInvalidFieldInCdb));
}

Task<void> capacity_10(Bench& bench) {
  const Reply reply = co_await bench.send_to_unit(cdb_of({0x25}));
  REQUIRE(reply.data.size() == 8);
  CHECK(big_endian<std::uint32_t>(reply.data, 0) == kBenchBlocks - 1);
  CHECK(big_endian<std::uint32_t>(reply.data, 4) == 512);
  const Reply strange = co_await bench.send_to_unit(cdb_of({0x25, 0, 0, 0, 0, 1}));
  CHECK(strange.illegal(Additional::kInvalidFieldInCdb));
}

Task<void> capacity_16_lengths(Bench& bench) {
  for (std::uint32_t length = 0; length <= 32; ++length) {
    const Reply reply = co_await bench.send_to_unit(cdb_16(0x9E, 0, length, 0x10));
    CHECK(reply.good());
    CHECK(reply.data.size() == length);
    CHECK(reply.data_in_bytes == length);
  }
  const Reply reply = co_await bench.send_to_unit(cdb_16(0x9E, 0, 32, 0x10));
  CHECK(big_endian<std::uint64_t>(reply.data, 0) == kBenchBlocks - 1);
  CHECK((reply.in(13) & 0x0FU) == 3);  // 4096 by 512
}

Task<void> physical_exponent(Bench& bench) {
  const Reply reply = co_await bench.send_to_unit(cdb_16(0x9E, 0, 32, 0x10));
  CHECK((reply.in(13) & 0x0FU) == 0);
}

// However many ports there are, the page has all of them.
Task<void> many_ports(Bench& bench) {
  const Reply page = co_await bench.send_to_unit(inquiry(0xFFFF, 0x88));
  REQUIRE(page.good());
  REQUIRE(page.data.size() == 4U + big_endian<std::uint16_t>(page.data, 2));
  std::vector<unsigned> ports;
  for (std::size_t at = 4; at < page.data.size();) {
    ports.push_back(big_endian<std::uint16_t>(page.data, at + 2));
    at += 12U + big_endian<std::uint16_t>(page.data, at + 10);
  }
  std::vector<unsigned> expected(64);
  std::iota(expected.begin(), expected.end(), 1U);
  CHECK(ports == expected);
}

}  // namespace

TEST_CASE("INQUIRY: standard data", "[scsi]") { on_bench(standard_data); }
TEST_CASE("INQUIRY: every allocation length truncates silently", "[scsi]") {
  on_bench(every_allocation_length);
}
TEST_CASE("INQUIRY: a page code without EVPD is an invalid field", "[scsi]") {
  on_bench(page_without_evpd);
}
TEST_CASE("INQUIRY: supported pages are ordered and can all be read", "[scsi]") {
  on_bench(supported_pages);
}
TEST_CASE("INQUIRY: device identification has NAA, T10, port and name designators", "[scsi]") {
  on_bench(identification);
}
TEST_CASE("VMware ESXi: VPD 83 has designators with LUN association of accepted types", "[scsi]") {
  on_bench(accepted_designators);
}
TEST_CASE("ESXi and Hyper-V: the first eight characters of the T10 designator are unique",
          "[scsi]") {
  for (std::uint8_t i = 0; i < 16; ++i) {
    scsi::LogicalUnitOptions options;
    options.uuid[15] = static_cast<std::uint8_t>(i + 1);
    on_bench(collect_vendor_designator, options);
  }
}
TEST_CASE("INQUIRY: block limits", "[scsi]") { on_bench(limits); }
TEST_CASE("Linux: VPD B2 and LBPME announce UNMAP of a thin unit", "[scsi]") {
  on_bench(provisioning_page_thin);
}
TEST_CASE("INQUIRY: a thick unit offers no unmapping", "[scsi]") {
  on_bench(provisioning_page_thick, {.thin = false});
}
TEST_CASE("READ CAPACITY(10): last block and block length", "[scsi]") { on_bench(capacity_10); }
TEST_CASE("Windows: READ CAPACITY(16) honours an allocation length of 12 exactly", "[scsi]") {
  on_bench(capacity_16_lengths);
}
TEST_CASE("MS SQL: the physical block exponent can be set", "[scsi]") {
  on_bench(physical_exponent, {.physical_block_exponent = std::uint8_t{0}});
}
TEST_CASE("SCSI Ports: every port of many", "[scsi]") {
  std::vector<std::uint16_t> ports(64);
  std::iota(ports.begin(), ports.end(), std::uint16_t{1});
  on_bench(many_ports, {.target_ports = ports});
}

}  // namespace sandbay::testing
