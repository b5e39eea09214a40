// Reservations that outlive the daemon, as records and in the book.
#include "group/reservation_book.h"

#include <fmt/core.h>
#include <rapidcheck.h>
#include <catch2/catch.hpp>

namespace sandbay::group {
namespace {

using scsi::NexusPorts;
using scsi::PersistentReservations;
using scsi::ReservationType;

constexpr std::string_view kKey = "reservation/0b4f8a50-5c0e-4c5e-9d0a-3c1b7f1f2a11";

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
    RC_ASSERT(again->reservations == value);
    RC_ASSERT(reservation_key(again->unit) == kKey);
  });
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
