// The personality "rdac" as hosts see it. The parser below is made of what they read: Linux
// scsi_dh_rdac.c (pages C2h, C4h, C8h, C9h; MODE SELECT of page 2Ch with PF 0), multipath-tools'
// checker (C9h; TAS by MODE SELECT with SP) and prioritizer (C9h), OpenBSD mpath_rdac.c (which
// takes no path where an id differs), sg_rdac (what page 2Ch is sensed as; transfers of all LUNs).
#include <string>

#include "fake_transport.h"
#include "scsi/personality.h"

namespace sandbay::testing {
namespace {

using scsi::Additional;

constexpr std::array<std::uint8_t, 16> kNaa{0x60, 0x08, 0x0E, 0x50, 0x00, 0x17, 0xA8, 0xD0,
                                            0x00, 0x00, 0x02, 0x5E, 0x4F, 0x1C, 0x3B, 0x2A};
constexpr std::array<std::uint8_t, 16> kArray{0x60, 0x08, 0x0E, 0x50, 0x00, 0x17, 0xA8, 0xD0,
                                              0x00, 0x00, 0x00, 0x00, 0x4D, 0x2F, 0x8B, 0x11};

scsi::LogicalUnitOptions ds3500() {
  return {.vendor = "IBM",
          .product = "1746      FAStT",
          .revision = "1070",
          .naa = kNaa,
          .name = "db1",
          .array_label = "ds3500",
          .array_id = kArray,
          .personality = scsi::find_personality("rdac")};
}

std::string letters(const Reply& page, std::size_t at, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += static_cast<char>(page.in(at + i));
  return text;
}

// A label of 60 bytes: characters of two bytes, of which the second is used, up to a zero.
std::string label(const Reply& page, std::size_t at) {
  std::string text;
  for (std::size_t i = 0; i < 30 && page.in(at + i * 2 + 1) != 0; ++i) {
    CHECK(page.in(at + i * 2) == 0);
    text += static_cast<char>(page.in(at + i * 2 + 1));
  }
  return text;
}

// Page, its whole length, and the four letters at byte 4.
Task<Reply> vendor_page(Bench& bench, unsigned code, std::size_t whole, std::string id) {
  const Reply page = co_await bench.send_to_unit(inquiry(255, code));
  CHECK(page.good());
  CHECK(page.in(0) == 0);  // Connected, a direct access block device.
  CHECK(page.in(1) == code);
  CHECK(page.data.size() == whole);
  CHECK(page.in(3) == whole - 4);
  CHECK(letters(page, 4, 4) == id);
  co_return page;
}

Task<void> listed(Bench& bench) {
  const Reply list = co_await bench.send_to_unit(inquiry(255, 0x00));
  CHECK(list.data == bytes_of({0, 0, 0, 12, 0x00, 0x80, 0x83, 0x86, 0x88, 0xB0, 0xB1, 0xB2, 0xC2,
                               0xC4, 0xC8, 0xC9}));
  const Reply other = co_await bench.send_to_unit(inquiry(255, 0xC3));
  CHECK(other.illegal(Additional::kInvalidFieldInCdb));
}

Task<void> software_version_page(Bench& bench) {
  const Reply page = co_await vendor_page(bench, 0xC2, 255, "swr4");
  CHECK(page.in(8) == 0x10);
  CHECK(page.in(9) == 0x70);
  CHECK(page.in(15) >= 32);  // max_lun_supported: MODE SELECT(10) is used.
}

Task<void> subsystem_page(Bench& bench) {
  const Reply page = co_await vendor_page(bench, 0xC4, 32, "subs");
  CHECK(letters(page, 8, 16) == "000000004D2F8B1 ");
  CHECK(letters(page, 24, 4) == "1070");
  CHECK(page.in(29) == 0x31);  // slot_id[1]: controller A.
}

Task<void> device_page(Bench& bench) {
  const Error added = co_await bench.router.add(7, &bench.unit);
  CHECK(added == Error::kNone);
  for (const unsigned lun : {0U, 7U}) {
    const Reply page =
        co_await bench.send_to_unit(inquiry(255, 0xC8), {.lun = scsi::encode_lun(lun)});
    REQUIRE(page.data.size() == 175);
    CHECK(letters(page, 4, 4) == "edid");
    CHECK(page.in(11) == 16);
    CHECK(std::ranges::equal(std::span(page.data).subspan(12, 16), std::as_bytes(std::span(kNaa))));
    CHECK(page.in(28) == 6);
    CHECK(label(page, 29) == "db1");
    CHECK(page.in(89) == 16);  // Hosts copy so many bytes into sixteen.
    CHECK(
        std::ranges::equal(std::span(page.data).subspan(90, 16), std::as_bytes(std::span(kArray))));
    CHECK(page.in(106) == 12);
    CHECK(label(page, 107) == "ds3500");
    CHECK(big_endian<std::uint64_t>(page.data, 167) == lun);
  }
  co_await bench.router.remove(7);
}

Task<void> long_labels(Bench& bench) {
  const Reply page = co_await bench.send_to_unit(inquiry(255, 0xC8));
  CHECK(page.in(28) == 60);
  CHECK(label(page, 29) == std::string(30, 'v'));
  CHECK(page.in(89) == 16);
}

// The checker: up. The prioritizer: owner (2) and preferred (4). The handler: RDAC mode, owned.
Task<void> access_page(Bench& bench) {
  const Reply page = co_await vendor_page(bench, 0xC9, 48, "vac1");
  CHECK((page.in(8) & 0x01U) == 0x01);  // Owner,
  CHECK((page.in(8) & 0x80U) == 0);     // not AVT,
  CHECK((page.in(8) & 0x20U) == 0);     // not IOSHIP,
  CHECK((page.in(8) & 0x10U) == 0);     // and no TPG data.
  CHECK((page.in(9) & 0x0FU) == 1);
}

// The page as scsi_dh_rdac.c forms it for LUN 0, header included.
Bytes transfer_list(bool expanded) {
  Bytes list(expanded ? 8 + 4 : 4 + 2);
  list[expanded ? 8 : 4] = expanded ? std::byte{0x6C} : std::byte{0x2C};
  if (expanded) {
    list[9] = std::byte{0x01};
    list[10] = std::byte{0x01};
    list[11] = std::byte{0x28};
  } else {
    list[5] = std::byte{0x68};
  }
  Bytes body(38 + (expanded ? 256 + 2 : 32 + 34));
  body[33] = std::byte{0x02};  // Transfer the specified LUNs,
  body[36] = std::byte{20};    // with so long to quiesce,
  body[37] = std::byte{0x02};  // or by force.
  body[38] = std::byte{0x81};
  list.insert(list.end(), body.begin(), body.end());
  return list;
}

Task<Reply> select_list(Bench& bench, Bytes list, unsigned flags) {
  const auto length = static_cast<unsigned>(list.size());
  const auto cdb = length > 255 ? cdb_of({0x55, flags, 0, 0, 0, 0, 0, length >> 8U, length & 0xFFU})
                                : cdb_of({0x15, flags, 0, 0, length});
  const Reply reply = co_await bench.send_to_unit(cdb, {.out = std::move(list)});
  co_return reply;
}

Task<void> transfers(Bench& bench) {
  for (const bool expanded : {false, true}) {
    Bytes list = transfer_list(expanded);
    CHECK(list.size() == (expanded ? 308 : 110));
    const Reply done = co_await select_list(bench, list, 0x00);
    CHECK(done.good());
    const std::size_t body = expanded ? 12 : 6;
    list[body + 33] = std::byte{0x01};  // Transfer all LUNs (sg_rdac --all).
    const Reply all = co_await select_list(bench, list, 0x00);
    CHECK(all.good());
    list[body + 33] = std::byte{0x03};  // A mode of which nothing is known here.
    const Reply mode = co_await select_list(bench, list, 0x00);
    CHECK(mode.illegal(Additional::kInvalidFieldInParameterList));
    CHECK(mode.field_byte() == body + 33);
    list[body + 33] = std::byte{0x02};
    list[body + 38 + 5] = std::byte{0x82};  // To the other controller.
    const Reply other = co_await select_list(bench, list, 0x00);
    CHECK(other.illegal(Additional::kInvalidFieldInParameterList));
    CHECK(other.field_byte() == body + 38 + 5);
    Bytes cut = transfer_list(expanded);
    cut.pop_back();
    const Reply length = co_await select_list(bench, cut, 0x00);
    CHECK(length.illegal(Additional::kParameterListLengthError));
    Bytes wrong = transfer_list(expanded);
    wrong[expanded ? 11 : 5] = std::byte{0x10};
    const Reply refused = co_await select_list(bench, wrong, 0x00);
    CHECK(refused.illegal(Additional::kInvalidFieldInParameterList));
    CHECK(refused.field_byte() == (expanded ? 10U : 5U));
  }
}

Task<void> sensed(Bench& bench) {
  const Reply small = co_await bench.send_to_unit(cdb_of({0x1A, 0x08, 0x2C, 0, 255}));
  REQUIRE(small.data.size() == 4 + 106);
  CHECK(small.in(4) == 0x2C);
  CHECK(small.in(5) == 0x68);
  CHECK(letters(small, 6, 16) == "000000004D2F8B1A");
  CHECK(letters(small, 22, 16) == "000000004D2F8B1B");
  CHECK(small.in(6 + 32) == 0);  // There is no other controller,
  CHECK(small.in(6 + 33) == 1);  // this one is active,
  CHECK(small.in(6 + 38) == 1);  // and the one that should have LUN 0.
  CHECK(small.in(6 + 39) == 0);
  const Reply large =
      co_await bench.send_to_unit(cdb_of({0x5A, 0x08, 0x2C, 0x01, 0, 0, 0, 0x02, 0}));
  REQUIRE(large.data.size() == 8 + 300);
  CHECK(large.in(8) == 0x6C);
  CHECK(large.in(9) == 0x01);
  CHECK(big_endian<std::uint16_t>(large.data, 10) == 0x128);
  CHECK(large.in(12 + 33) == 1);
  CHECK(large.in(12 + 38) == 1);
  // What is sensed can be sent back.
  const Reply back = co_await select_list(bench, Bytes(small.data.begin(), small.data.end()), 0x10);
  CHECK(back.good());
  const Reply mask = co_await bench.send_to_unit(cdb_of({0x1A, 0x08, 0x6C, 0, 255}));
  REQUIRE(mask.data.size() == 4 + 106);
  CHECK(mask.in(6) == 0);
  CHECK(mask.in(6 + 33) == 0xFF);
  CHECK(mask.in(6 + 38) == 0xFF);
}

Task<void> all_of_them(Bench& bench) {
  const Reply pages = co_await bench.send_to_unit(cdb_of({0x1A, 0x08, 0x3F, 0, 255}));
  CHECK(pages.data.size() == 4U + 12 + 20 + 12 + 12 + 106);
  const Reply subpages =
      co_await bench.send_to_unit(cdb_of({0x5A, 0x08, 0x3F, 0xFF, 0, 0, 0, 0x02, 0}));
  CHECK(subpages.data.size() == 8U + 12 + 20 + 12 + 12 + 106 + 300);
  // The length of those has no room in the short header.
  const Reply short_header = co_await bench.send_to_unit(cdb_of({0x1A, 0x08, 0x3F, 0xFF, 255}));
  CHECK(short_header.illegal(Additional::kInvalidFieldInCdb));
  const Reply none = co_await bench.send_to_unit(cdb_of({0x5A, 0x08, 0x2C, 2, 0, 0, 0, 2, 0}));
  CHECK(none.illegal(Additional::kInvalidFieldInCdb));
  // One subpage of all pages cannot be asked for.
  const Reply one = co_await bench.send_to_unit(cdb_of({0x5A, 0x08, 0x3F, 1, 0, 0, 0, 2, 0}));
  CHECK(one.illegal(Additional::kInvalidFieldInCdb));
}

// As the checker does when it begins: sense the control page, set TAS in what came, send it back
// with SP and without PF.
Task<void> task_aborted_status(Bench& bench) {
  const Reply sensed = co_await bench.send_to_unit(cdb_of({0x5A, 0x08, 0x0A, 0, 0, 0, 0, 0, 20}));
  REQUIRE(sensed.data.size() == 20);
  Bytes list = sensed.data;
  list[13] |= std::byte{0x40};
  const Reply set =
      co_await bench.send_to_unit(cdb_of({0x55, 0x01, 0, 0, 0, 0, 0, 0, 20}), {.out = list});
  CHECK(set.good());
  CHECK(bench.unit.mode_parameters().task_aborted_status);
}

Task<void> plain(Bench& bench) {
  const Reply page = co_await bench.send_to_unit(inquiry(255, 0xC9));
  CHECK(page.illegal(Additional::kInvalidFieldInCdb));
  const Reply sense = co_await bench.send_to_unit(cdb_of({0x1A, 0x08, 0x2C, 0, 255}));
  CHECK(sense.illegal(Additional::kInvalidFieldInCdb));
  const Reply unformatted = co_await select_list(bench, transfer_list(false), 0x00);
  CHECK(unformatted.illegal(Additional::kInvalidFieldInCdb));
  const Reply formatted = co_await select_list(bench, transfer_list(false), 0x10);
  CHECK(formatted.illegal(Additional::kInvalidFieldInParameterList));
}

}  // namespace

TEST_CASE("RDAC: the vendor's pages are listed, and no others", "[scsi]") {
  on_bench(listed, ds3500());
}
TEST_CASE("RDAC: page C2h has the software's version and asks for the long MODE SELECT", "[scsi]") {
  on_bench(software_version_page, ds3500());
}
TEST_CASE("RDAC: page C4h names subsystem and slot", "[scsi]") {
  on_bench(subsystem_page, ds3500());
}
TEST_CASE("RDAC: page C8h names volume, array and the LUN by which it was asked", "[scsi]") {
  on_bench(device_page, ds3500());
}
TEST_CASE("RDAC: labels are cut at thirty characters", "[scsi]") {
  auto options = ds3500();
  options.name = std::string(40, 'v');
  on_bench(long_labels, options);
}
TEST_CASE("multipath-tools: page C9h says that the path is up and preferred", "[scsi]") {
  on_bench(access_page, ds3500());
}
TEST_CASE("Linux: a transfer to the controller that owns the volume is done", "[scsi]") {
  on_bench(transfers, ds3500());
}
TEST_CASE("RDAC: page 2Ch can be sensed in both its forms", "[scsi]") {
  on_bench(sensed, ds3500());
}
TEST_CASE("RDAC: all mode pages have the vendor's among them", "[scsi]") {
  on_bench(all_of_them, ds3500());
}
TEST_CASE("multipath-tools: TAS is set by a MODE SELECT with SP and without PF", "[scsi]") {
  on_bench(task_aborted_status, ds3500());
}
TEST_CASE("RDAC: nothing of it is there without the personality", "[scsi]") { on_bench(plain); }
TEST_CASE("Personalities are found by name", "[scsi]") {
  CHECK(scsi::find_personality("rdac") == &scsi::kRdac);
  CHECK(scsi::find_personality("") == nullptr);
  CHECK(scsi::find_personality("alua") == nullptr);
}

}  // namespace sandbay::testing
