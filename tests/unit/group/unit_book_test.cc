// Records of what outlives the daemon of units.
#include "group/unit_book.h"

#include <fmt/core.h>
#include <rapidcheck.h>
#include <catch2/catch.hpp>

#include "metadata/simulated_store.h"
#include "runtime/simulation.h"
#include "tests/unit/metadata/forwarding_store.h"

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

// Commits fail while they are told to, and then nobody knows of what.
class DoubtfulStore final : public sandbay::testing::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  Task<Error> commit(metadata::Batch batch) override {
    if (fails) return failure();
    return below_.commit(std::move(batch));
  }
  bool in_doubt() const noexcept override { return doubts; }
  bool fails = false;
  bool doubts = false;

 private:
  static Task<Error> failure() { co_return Error::kHardware; }
};

Task<void> in_book(Executor* home, Task<void> (*test)(DoubtfulStore*, UnitBook*)) {
  auto store = co_await metadata::open_simulated_store(*home, "metadata");
  REQUIRE(store.has_value());
  DoubtfulStore doubtful(**store);
  UnitBook book(doubtful, nullptr);
  co_await test(&doubtful, &book);
  co_await (*store)->close();
}

void run(Task<void> (*test)(DoubtfulStore*, UnitBook*)) {
  auto world = sim::World::create({.seed = 1});
  Executor* const home = world->executors()[0];
  const bool ended = world->run([home, test] { return in_book(home, test); });
  CHECK(ended);
}

constexpr std::string_view kOther = "0b4f8a50-5c0e-4c5e-9d0a-3c1b7f1f2a12";

Task<void> load_all(DoubtfulStore* store, UnitBook* book) {
  const Uuid unit = unit_of(kKey);
  const Uuid gone = parse_uuid(kOther).value();
  metadata::Batch batch;
  batch.put(std::string(kKey), "no record at all");
  batch.put(reservation_key(gone), "nor this");
  batch.put(sanitize_key(unit), encode(scsi::SanitizeOperation{.pattern = {std::byte{1}}}));
  batch.put(atomic_key(unit, 7), encode({.first = 7, .data = Bytes(1024)}));
  batch.put(atomic_key(gone, 7), encode({.first = 7, .data = Bytes(1024)}));
  Error error = co_await store->commit(std::move(batch));
  REQUIRE(error == Error::kNone);
  const auto loaded = co_await book->load({unit});
  REQUIRE(loaded.has_value());
  const scsi::KeptOfUnit kept = book->of(unit);
  CHECK(kept.reservations == scsi::lost_reservations());
  CHECK(kept.sanitize.has_value());
  REQUIRE(kept.blocks.size() == 1);
  CHECK(kept.blocks[0] == scsi::BlocksBefore{.first = 7, .data = Bytes(1024)});
  CHECK(book->of(gone).reservations == PersistentReservations{});
  auto all = co_await metadata::list_all(*store, "");
  REQUIRE(all.has_value());
  CHECK(all->size() == 3);

  metadata::Batch deletion;
  book->erase(unit, deletion);
  error = co_await store->commit(std::move(deletion));
  CHECK(error == Error::kNone);
  all = co_await metadata::list_all(*store, "");
  REQUIRE(all.has_value());
  CHECK(all->empty());
}

Task<void> doubt(DoubtfulStore* store, UnitBook* book) {
  const auto part = book->part(unit_of(kKey));
  store->fails = true;
  Error error = co_await part->keep_blocks({.first = 1, .data = Bytes(512)});
  CHECK(error == Error::kHardware);
  store->doubts = true;
  error = co_await part->keep_sanitize(scsi::SanitizeOperation{.pattern = {std::byte{1}}});
  CHECK(error == Error::kTimedOut);
  CHECK(book->of(unit_of(kKey)).blocks.empty());
  CHECK_FALSE(book->of(unit_of(kKey)).sanitize.has_value());
}

// The writes of all units together keep 32 MiB; a torn one, or one of a unit that has gone, leaves
// its room to others.
Task<void> bound(DoubtfulStore* /*store*/, UnitBook* book) {
  const Uuid unit = unit_of(kKey);
  const auto one = book->part(unit);
  const auto other = book->part(parse_uuid(kOther).value());
  const auto keep = [](scsi::UnitStore& part, Lba first) {
    return part.keep_blocks({.first = first, .data = Bytes(std::size_t{1} << 20)});
  };
  for (Lba i = 0; i < 32; ++i) {
    const Error error = co_await keep(i % 2 == 0 ? *one : *other, i);
    CHECK(error == Error::kNone);
  }
  Error error = co_await keep(*other, 100);
  CHECK(error == Error::kNoMemory);
  CHECK_FALSE(book->has_torn(unit));
  one->note_torn({0, 2048}, Error::kHardware);
  CHECK(book->has_torn(unit));
  error = co_await keep(*other, 100);
  CHECK(error == Error::kNone);
  error = co_await one->drop_blocks(0);
  CHECK(error == Error::kNone);
  error = co_await keep(*other, 101);
  CHECK(error == Error::kNoMemory);
  book->forget(unit);
  for (Lba i = 0; i < 15; ++i) {
    error = co_await keep(*other, 200 + i);
    CHECK(error == Error::kNone);
  }
  error = co_await keep(*other, 300);
  CHECK(error == Error::kNoMemory);
  for (const auto& each : book->of(parse_uuid(kOther).value()).blocks) {
    error = co_await other->drop_blocks(each.first);
    CHECK(error == Error::kNone);
  }
  for (Lba i = 0; i < 32; ++i) {
    error = co_await keep(*one, i);
    CHECK(error == Error::kNone);
  }
}

TEST_CASE("A book of units is read at the start", "[group][units]") { run(load_all); }
TEST_CASE("A book of units knows when it is in doubt", "[group][units]") { run(doubt); }
TEST_CASE("Units keep only so many blocks together", "[group][units]") { run(bound); }

}  // namespace
}  // namespace sandbay::group
