// Records of what outlives the daemon of units.
#include "group/unit_book.h"

#include <fmt/core.h>
#include <rapidcheck.h>
#include <catch2/catch.hpp>

namespace sandbay::group {
namespace {

using scsi::NexusPorts;
using scsi::PersistentReservations;
using scsi::ReservationType;

constexpr std::string_view kKey = "reservation/0b4f8a50-5c0e-4c5e-9d0a-3c1b7f1f2a11";

using Bytes = std::vector<std::byte>;

Uuid unit_of(std::string_view key) { return parse_uuid(key.substr(key.find('/') + 1)).value(); }

PersistentReservations drawn() {
  PersistentReservations value{.through_power_loss = true};
  const auto count = *rc::gen::inRange(1, 6);
  for (int i = 0; i < count; ++i) {
    const NexusPorts nexus{
        .initiator_port = fmt::format("iqn.2026-11.org.example:{},i,0x{:012x}",
                                      *rc::gen::element("a", "b-\xc3\xa4", "c,d"), i),
        .target_port = *rc::gen::arbitrary<std::uint16_t>()};
    value.keys[nexus] = *rc::gen::nonZero<std::uint64_t>();
  }
  constexpr std::array kTypes{0, 1, 3, 5, 6, 7, 8};
  value.type = static_cast<ReservationType>(*rc::gen::elementOf(kTypes));
  if (value.reserved() && !is_all_registrants(value.type)) {
    value.holder = std::next(value.keys.begin(), *rc::gen::inRange(0, count))->first;
  }
  return value;
}

TEST_CASE("Reservations go to a record and back", "[group][reservation]") {
  rc::check("any of them", [] {
    const PersistentReservations value = drawn();
    const auto again = decode_reservations(kKey, encode(value));
    RC_ASSERT(again.has_value());
    RC_ASSERT(again->record == value);
    RC_ASSERT(reservation_key(again->unit) == kKey);
  });
}

TEST_CASE("Sanitize operations go to a record and back", "[group][sanitize]") {
  rc::check("any of them", [] {
    scsi::SanitizeOperation value{.allows_exit = *rc::gen::arbitrary<bool>(),
                                  .at = {.next = *rc::gen::arbitrary<std::uint64_t>()},
                                  .failed = *rc::gen::arbitrary<bool>()};
    if (*rc::gen::arbitrary<bool>()) {
      value.method = scsi::SanitizeOperation::Method::kBlockErase;
    } else {
      value.passes = *rc::gen::inRange(1U, 32U);
      value.at.pass = *rc::gen::inRange(0U, value.passes);
      value.inverts = *rc::gen::arbitrary<bool>();
      value.pattern.resize(*rc::gen::inRange<std::size_t>(1, 513));
      for (std::byte& each : value.pattern) each = std::byte{*rc::gen::arbitrary<std::uint8_t>()};
    }
    const std::string key = sanitize_key(unit_of(kKey));
    const auto again = decode_sanitize(key, encode(value));
    RC_ASSERT(again.has_value());
    RC_ASSERT(again->record == value);
    RC_ASSERT(sanitize_key(again->unit) == key);
  });
  const std::string key = sanitize_key(unit_of(kKey));
  const std::string good = encode(scsi::SanitizeOperation{.pattern = {std::byte{1}}});
  const auto with = [&](std::string_view from, std::string_view to) {
    std::string text = good;
    return decode_sanitize(key, text.replace(text.find(from), from.size(), to));
  };
  CHECK(decode_sanitize(key, good).has_value());
  CHECK_FALSE(with("\"overwrite\"", "\"wash\"").has_value());
  CHECK_FALSE(with("\"overwrite\"", "\"block erase\"").has_value());
  CHECK_FALSE(with("\"01\"", "\"\"").has_value());
  CHECK_FALSE(with("\"01\"", "\"1\"").has_value());
  CHECK_FALSE(with("\"01\"", "\"0x\"").has_value());
  CHECK_FALSE(with("\"passes\":1", "\"passes\":32").has_value());
  CHECK_FALSE(with("\"pass\":0", "\"pass\":1").has_value());
}

TEST_CASE("Atomic writes go to a record and back", "[group][atomic]") {
  const scsi::BlocksBefore value{.first = 0x12'3456'789A, .data = {512, std::byte{0xA5}}};
  const std::string key = atomic_key(unit_of(kKey), value.first);
  const auto again = decode_atomic(key, encode(value));
  REQUIRE(again.has_value());
  CHECK(again->record == value);
  CHECK(atomic_key(again->unit, again->record.first) == key);
  CHECK_FALSE(decode_atomic(key + "0", encode(value)).has_value());
  CHECK_FALSE(decode_atomic(key.substr(0, key.size() - 1), encode(value)).has_value());
  CHECK_FALSE(decode_atomic("atomic/x", encode(value)).has_value());
  CHECK_FALSE(decode_atomic(key, encode({.first = 1, .data = {}})).has_value());
  CHECK_FALSE(decode_atomic(key, encode({.first = 1, .data = Bytes(511)})).has_value());
  for (const std::string& work : {key, sanitize_key(unit_of(kKey))}) CHECK(is_work_on_blocks(work));
  CHECK_FALSE(is_work_on_blocks(kKey));
}

TEST_CASE("Damaged records of reservations are refused", "[group][reservation]") {
  const std::string good =
      R"({"format":1,"registrations":[{"initiator":"iqn.a:b,i,0x000000000001","key":7,)"
      R"("holder":true,"port":1}],"type":5})";
  CHECK(decode_reservations(kKey, good).has_value());
  CHECK_FALSE(decode_reservations("reservation/x", good).has_value());
  const auto with = [&](std::string_view from, std::string_view to) {
    std::string text = good;
    return decode_reservations(kKey, text.replace(text.find(from), from.size(), to));
  };
  CHECK_FALSE(with("\"type\":5", "\"type\":2").has_value());
  CHECK_FALSE(with("\"type\":5", "\"type\":0").has_value());
  CHECK_FALSE(with("\"type\":5", "\"type\":7").has_value());
  CHECK_FALSE(with("\"holder\":true", "\"holder\":false").has_value());
  CHECK_FALSE(with("\"key\":7", "\"key\":0").has_value());
  CHECK_FALSE(with("\"port\":1", "\"port\":65536").has_value());
  CHECK_FALSE(with("iqn.a:b", "iqn a").has_value());
}

}  // namespace
}  // namespace sandbay::group
