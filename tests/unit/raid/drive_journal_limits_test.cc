// The journal on drives, one property at a time: batches, full rings, failing drives, foreign and
// damaged records, memory.

#include <algorithm>
#include <map>
#include <memory>
#include <ranges>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "crash_drives.h"
#include "journal_model.h"
#include "raid/drive_journal.h"
#include "raid/journal_newest.h"
#include "runtime/simulation.h"

namespace sandbay::raid::testing::drive_journal_limits_test {
namespace {

constexpr std::uint64_t kFirstBlock = 16;

JournalRing small_ring(std::uint64_t units = 64) {
  return {.set = {1, 2, 3},
          .first_block = kFirstBlock,
          .block_count = units,
          .block_bytes = 512,
          .unit_bytes = 512,
          .copies = 2,
          .role_count = 4};
}

// Buffers that are given up outside the world are messages to it, which take their time.
struct Settle {
  sim::World& world;
  ~Settle() { world.run_for(std::chrono::seconds(1)); }
};

struct Bench {
  explicit Bench(JournalRing the_ring = small_ring())
      : ring(the_ring),
        drives(*world->executors()[0], ring.role_count,
               (kFirstBlock + ring.block_count) * kSectorBytes),
        journal(drives, ring, home()) {}

  Executor& home() { return *world->executors()[0]; }
  void run(Task<void> (*task)(Bench*)) {
    const bool ended = world->run([this, task] { return task(this); });
    REQUIRE(ended);
  }

  std::unique_ptr<sim::World> world = sim::World::create({.seed = 7});
  Settle settle{*world};
  JournalRing ring;
  CrashDrives drives;
  DriveJournal journal;
  std::vector<std::uint64_t> tickets;
  std::map<std::uint64_t, std::uint64_t> ticket_of;  // By stripe.
  std::vector<Error> errors;
  Result<JournalRecovery> found{};
  Gate busy;
};

Task<void> start(Bench* bench) {
  const auto found = co_await bench->journal.recover();
  bench->errors.push_back(found.has_value() ? Error::kNone : found.error());
  bench->errors.push_back(co_await bench->journal.reset());
}

// One write of `blocks` blocks on role 0, filled with the stripe's number.
Task<void> append_one(Bench* bench, std::uint64_t stripe, std::uint64_t blocks) {
  const JournalWrite write{.extent = {.first = stripe * 8, .block_count = blocks}};
  const std::vector<std::byte> bytes(blocks * 512, static_cast<std::byte>(stripe));
  const BufferList payload = pool_payload(bench->home(), bytes);
  const auto ticket = co_await bench->journal.append(
      {.stripe = stripe, .writes = {&write, 1}, .payload = &payload});
  if (ticket.has_value()) {
    bench->tickets.push_back(*ticket);
    bench->ticket_of[stripe] = *ticket;
  } else {
    bench->errors.push_back(ticket.error());
  }
  bench->busy.leave();
}

void begin_append(Bench* bench, std::uint64_t stripe, std::uint64_t blocks) {
  const bool entered = bench->busy.enter();
  assert(entered);
  spawn(append_one(bench, stripe, blocks));
}

Task<void> append_and_wait(Bench* bench, std::uint64_t stripe, std::uint64_t blocks) {
  begin_append(bench, stripe, blocks);
  co_await bench->busy.drain();
}

Task<void> recover_again(Bench* bench) {
  DriveJournal second(bench->drives, bench->ring, bench->home());
  bench->found = co_await second.recover();
}

std::vector<std::uint64_t> stripes(const JournalRecovery& recovery) {
  std::vector<std::uint64_t> result;
  for (const RecoveredUpdate& update : recovery.updates) result.push_back(update.stripe);
  return result;
}

TEST_CASE("Appends of one turn are one write to each of the copies' drives", "[raid]") {
  Bench bench;
  bench.run([](Bench* b) -> Task<void> {
    co_await start(b);
    b->drives.writes = 0;
    for (std::uint64_t i = 0; i < 10; ++i) begin_append(b, i, 1);
    co_await b->busy.drain();
    co_await recover_again(b);
  });
  CHECK(bench.drives.writes == 2);
  CHECK(bench.tickets.size() == 10);
  CHECK(bench.journal.used_bytes() == 10 * 2 * 512);
  REQUIRE(bench.found.has_value());
  CHECK(stripes(*bench.found) == std::vector<std::uint64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
}

// A journal with these keys finds what the one of the bench has left.
Task<void> recover_with(Bench* bench, Journal::Keys keys) {
  DriveJournal second(bench->drives, bench->ring, bench->home());
  second.set_keys(keys);
  bench->found = co_await second.recover();
}

TEST_CASE("Records on drives under another key are of another life", "[raid]") {
  struct Case {
    Journal::Keys keys;
    std::size_t updates;
    bool all_lost;
  };
  const Case expected =
      GENERATE(Case{{5, 0}, 3, false}, Case{{5, 6}, 3, false}, Case{{4, 5}, 3, false},
               Case{{0, 6}, 3, false}, Case{{6, 7}, 0, true}, Case{{4, 0}, 0, true});
  CAPTURE(expected.keys.last, expected.keys.next);
  Bench bench;
  bench.journal.set_keys({.last = 0, .next = 5});
  bench.run([](Bench* b) -> Task<void> {
    co_await start(b);
    for (std::uint64_t i = 0; i < 3; ++i) co_await append_and_wait(b, i, 1);
  });
  const bool ended = bench.world->run([&] { return recover_with(&bench, expected.keys); });
  REQUIRE(ended);
  REQUIRE(bench.found.has_value());
  CHECK(bench.found->updates.size() == expected.updates);
  CHECK(bench.found->all_lost == expected.all_lost);
}

Task<void> begin_next(Bench* bench) {
  DriveJournal next(bench->drives, bench->ring, bench->home());
  next.set_keys({.last = 5, .next = 6});
  const auto found = co_await next.recover();
  bench->errors.push_back(found.has_value() ? Error::kNone : found.error());
  bench->errors.push_back(co_await next.reset());
}

TEST_CASE("Once a life of the journal has begun the one before is done with", "[raid]") {
  Bench bench;
  bench.journal.set_keys({.last = 0, .next = 5});
  bench.run([](Bench* b) -> Task<void> {
    co_await start(b);
    co_await append_and_wait(b, 1, 1);
    co_await begin_next(b);
  });
  for (const Error error : bench.errors) CHECK(error == Error::kNone);
  for (const Journal::Keys keys : {Journal::Keys{5, 6}, Journal::Keys{6, 0}}) {
    const bool ended = bench.world->run([&] { return recover_with(&bench, keys); });
    REQUIRE(ended);
    REQUIRE(bench.found.has_value());
    CHECK(bench.found->updates.empty());
    CHECK_FALSE(bench.found->all_lost);
  }
}

TEST_CASE("Writes of the journal go round the drives", "[raid]") {
  Bench bench;
  bench.run([](Bench* b) -> Task<void> {
    co_await start(b);
    for (std::uint64_t i = 0; i < 8; ++i) co_await append_and_wait(b, i, 1);
  });
  // Nine batches of two copies on four drives: each has four or five of them.
  for (const CrashDrives::Drive& drive : bench.drives.image().drives) {
    std::size_t headers = 0;
    for (std::size_t sector = kFirstBlock; sector < kFirstBlock + 64; ++sector) {
      const auto bytes = std::span(drive.durable).subspan(sector * 512, 512);
      if (decode_journal_header(bytes, 512).has_value()) ++headers;
    }
    CHECK(headers >= 4);
    CHECK(headers <= 5);
  }
}

TEST_CASE("A full ring tells its owner and serves who waits in order", "[raid]") {
  Bench bench;
  unsigned pressed = 0;
  bench.journal.on_pressure = [&] { ++pressed; };
  bench.run([](Bench* b) -> Task<void> {
    co_await start(b);
    for (std::uint64_t i = 0; i < 20; ++i) begin_append(b, i, 7);
    co_await b->home().sleep_for(std::chrono::milliseconds(10));
  });
  // Seven records of eight units, one record of reset() and a free unit are 64 at most.
  REQUIRE(bench.tickets.size() == 7);
  CHECK(pressed >= 1);
  CHECK(bench.journal.under_pressure());
  bench.run([](Bench* b) -> Task<void> {
    for (std::size_t i = 0; i < 20; ++i) {
      while (b->tickets.size() <= i) co_await b->home().sleep_for(std::chrono::milliseconds(1));
      b->journal.release(b->tickets[i]);
    }
    co_await b->busy.drain();
  });
  CHECK(bench.tickets.size() == 20);
  CHECK(std::ranges::is_sorted(bench.ticket_of | std::views::values));
  CHECK(bench.journal.used_bytes() == 0);
  CHECK_FALSE(bench.journal.under_pressure());
}

TEST_CASE("The largest payload fits wherever the ring's head is", "[raid]") {
  Bench bench;
  bench.run([](Bench* b) -> Task<void> {
    co_await start(b);
    const std::uint64_t largest = b->journal.largest_payload_bytes() / 512;
    for (std::uint64_t i = 0; i < 150; ++i) {
      co_await append_and_wait(b, i % 64, i % 3 == 0 ? largest : 1 + i % 5);
      b->journal.release(b->tickets.back());
    }
  });
  CHECK(bench.tickets.size() == 150);
}

TEST_CASE("The journal goes on with any live drive and stops without one", "[raid]") {
  Bench bench;
  bench.run([](Bench* b) -> Task<void> {
    co_await start(b);
    b->drives.failure_chance = 1;
    b->drives.failures_left = 3;
    co_await append_and_wait(b, 1, 1);
    co_await recover_again(b);
    b->drives.failures_left = 1;
    co_await append_and_wait(b, 2, 1);
    co_await append_and_wait(b, 3, 1);
  });
  REQUIRE(bench.found.has_value());
  CHECK(stripes(*bench.found) == std::vector<std::uint64_t>{1});
  CHECK(bench.tickets.size() == 1);
  CHECK(bench.errors ==
        std::vector<Error>{Error::kNone, Error::kNone, Error::kHardware, Error::kHardware});
  CHECK(bench.journal.failure() == Error::kHardware);
}

TEST_CASE("Records of another set are not touched by recovery", "[raid]") {
  Bench bench;
  bench.run([](Bench* b) -> Task<void> {
    co_await start(b);
    co_await append_and_wait(b, 5, 2);
    b->ring.set = {9};
    co_await recover_again(b);
  });
  REQUIRE(bench.found.has_value());
  CHECK(bench.found->updates.empty());
  CHECK_FALSE(bench.found->all_lost);
}

// Flips a byte of every record of `stripe`, in its header or in its payload.
void damage_stripe(Bench& bench, std::uint64_t stripe, bool in_header) {
  for (CrashDrives::Drive& drive : bench.drives.image().drives) {
    for (std::size_t sector = kFirstBlock; sector + 1 < drive.durable.size() / 512; ++sector) {
      const auto bytes = std::span(drive.durable).subspan(sector * 512, 1024);
      const auto header = decode_journal_header(bytes, 512);
      if (!header.has_value() || header->tail_only || header->stripe != stripe) continue;
      bytes[in_header ? 70 : 512 + 100] ^= std::byte{1};
    }
  }
}

TEST_CASE("A record that was durable and is lost on all drives is reported", "[raid]") {
  const bool in_header = GENERATE(false, true);
  Bench bench;
  bench.run([](Bench* b) -> Task<void> {
    co_await start(b);
    for (std::uint64_t i = 1; i <= 3; ++i) co_await append_and_wait(b, i, 2);
  });
  damage_stripe(bench, 2, in_header);
  bench.run([](Bench* b) -> Task<void> { return recover_again(b); });
  REQUIRE(bench.found.has_value());
  // Where nobody knows what it wrote, it may have written what the one before it did, too.
  const std::vector<std::uint64_t> known = {1, 3};
  const std::vector<std::uint64_t> newer = {3};
  CHECK(stripes(*bench.found) == (in_header ? newer : known));
  CHECK(bench.found->all_lost == in_header);
  REQUIRE(bench.found->lost.size() == 1);
  CHECK(bench.found->lost[0].stripe == (in_header ? 1 : 2));
  CHECK_FALSE(bench.found->lost[0].writes.empty());
}

TEST_CASE("Where the ring's end cannot be read on too many drives, all may be lost", "[raid]") {
  Bench bench;
  bench.run([](Bench* b) -> Task<void> {
    co_await start(b);
    co_await append_and_wait(b, 1, 2);
  });
  const unsigned drives = GENERATE(1U, 2U);
  // reset() took one unit, the record three.
  for (unsigned i = 0; i < drives; ++i) {
    bench.drives.image().drives[i].unreadable.insert(kFirstBlock + 4);
  }
  bench.run([](Bench* b) -> Task<void> { return recover_again(b); });
  REQUIRE(bench.found.has_value());
  CHECK(stripes(*bench.found) == std::vector<std::uint64_t>{1});
  CHECK(bench.found->all_lost == (drives == 2));
}

TEST_CASE("The journal takes no more memory the longer it runs", "[raid]") {
  Bench bench;
  std::vector<std::size_t> used;
  bench.run([](Bench* b) -> Task<void> { return start(b); });
  for (int i = 0; i < 5; ++i) {
    bench.run([](Bench* b) -> Task<void> {
      for (std::uint64_t j = 0; j < 200; ++j) {
        co_await append_and_wait(b, j, 3);
        b->journal.release(b->tickets.back());
      }
    });
    used.push_back(bench.home().buffers().used_bytes());
  }
  CHECK(std::ranges::all_of(used, [&](std::size_t bytes) { return bytes == used.front(); }));
  CHECK(used.front() <= 256 * 1024 + 512);
}

TEST_CASE("A journal header with any bit changed is none", "[raid]") {
  const std::vector<JournalWrite> writes = {
      {.role = 3, .extent = {.first = 100, .block_count = 8}},
      {.role = 63, .zeroes = true, .extent = {.first = 1ULL << 40U, .block_count = 0xffffffff}}};
  const JournalHeader header{.set = {4, 5},
                             .write_count = 2,
                             .sequence = 77,
                             .tail = 70,
                             .batch = 75,
                             .position = 1234,
                             .stripe = 99,
                             .payload_bytes = 8 * 512,
                             .payload_crc = 0x1234};
  std::vector<std::byte> bytes(512);
  encode_journal_header(header, writes, bytes);
  const auto decoded = decode_journal_header(bytes, 512);
  REQUIRE(decoded.has_value());
  CHECK(decoded->set == header.set);
  CHECK(decoded->sequence == 77);
  CHECK(decoded->tail == 70);
  CHECK(decoded->batch == 75);
  CHECK(decoded->position == 1234);
  CHECK(decoded->stripe == 99);
  const auto again = decode_journal_writes(*decoded, bytes);
  REQUIRE(again.size() == 2);
  CHECK(again[1].role == 63);
  CHECK(again[1].zeroes);
  CHECK(again[1].extent == writes[1].extent);
  CHECK_FALSE(decode_journal_header(bytes, 4096).has_value());  // Other bytes of payload.
  std::size_t accepted = 0;
  for (std::size_t bit = 0; bit < header.byte_count() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    if (decode_journal_header(bytes, 512).has_value()) ++accepted;
    bytes[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
  }
  CHECK(accepted == 0);
  for (std::size_t length = 0; length < header.byte_count(); ++length) {
    if (decode_journal_header(std::span(bytes).first(length), 512).has_value()) ++accepted;
  }
  CHECK(accepted == 0);
}

// Against blocks written one after another; what a lost update wrote is not taken back.
TEST_CASE("keep_newest leaves each block's newest bytes, once", "[raid]") {
  Random random(11);
  for (int round = 0; round < 2000; ++round) {
    std::vector<RecoveredUpdate> updates(random.between(1, 6));
    std::vector<LostUpdate> lost;
    std::uint64_t sequence = 0;
    std::map<std::pair<unsigned, Lba>, int> expected;
    std::uint8_t value = 0;
    for (RecoveredUpdate& update : updates) {
      update.sequence = ++sequence;
      const bool is_lost = random.chance(0.2);
      for (std::uint64_t i = random.between(1, 4); i > 0; --i) {
        const JournalWrite write{
            .role = static_cast<std::uint16_t>(random.below(2)),
            .zeroes = random.chance(0.3),
            .extent = {.first = random.below(12), .block_count = random.between(1, 8)}};
        update.writes.push_back(write);
        for (Lba lba = write.extent.first; lba < write.extent.end(); ++lba) {
          expected[{write.role, lba}] = write.zeroes ? -1 : ++value;
          if (!write.zeroes) update.payload.push_back(std::byte{value});
          if (is_lost) expected.erase({write.role, lba});
        }
      }
      if (is_lost) lost.push_back({.sequence = sequence, .stripe = 0, .writes = update.writes});
    }
    std::erase_if(updates, [&lost](const RecoveredUpdate& update) {
      return std::ranges::find(lost, update.sequence, &LostUpdate::sequence) != lost.end();
    });
    keep_newest(updates, lost, 1);
    std::map<std::pair<unsigned, Lba>, int> left;
    std::size_t blocks = 0;
    for (const RecoveredUpdate& update : updates) {
      std::size_t offset = 0;
      REQUIRE_FALSE(update.writes.empty());
      for (const JournalWrite& write : update.writes) {
        for (Lba lba = write.extent.first; lba < write.extent.end(); ++lba, ++blocks) {
          left[{write.role, lba}] =
              write.zeroes ? -1 : std::to_integer<int>(update.payload.at(offset++));
        }
      }
      REQUIRE(offset == update.payload.size());
    }
    REQUIRE(left == expected);
    REQUIRE(blocks == expected.size());
  }
}

}  // namespace
}  // namespace sandbay::raid::testing::drive_journal_limits_test
