// Zeros replace a block that is lost, and no read may return them: neither one that its drive has
// while the block is lost, nor one after a loss of power that took what replaced the zeros.
#include <algorithm>

#include "set_rig.h"

namespace sandbay::raidtest::lost_reads_test {
namespace {

constexpr Duration kLate = std::chrono::milliseconds(100);  // Less than what a set reads around.

struct Raced {
  SetShape shape;
  std::vector<unsigned> gone;  // Roles that are missing.
  std::uint64_t blocks = 8;    // That the reads ask for, from block 0 on, which is the bad one.
  unsigned bad_members = 1;    // Members of stripe 0 that are bad in the first row.
};

struct Slow {
  Error error = Error::kNone;
  std::vector<std::byte> bytes;
  bool ended = false;
  Condition done;
};

Task<void> read_slowly(SetRig* rig, const Raced* its, Slow* slow) {
  slow->bytes.resize(its->blocks * 512);
  slow->error = co_await rig->read_raw(0, slow->bytes);
  slow->ended = true;
  slow->done.notify_all();
}

// Starts a read that the drives hold for kLate; the next reads are served at once.
void begin_slow_read(SetRig* rig, const Raced* its, Slow* slow) {
  for (const auto& device : rig->devices) device->slow_reads(kLate);
  spawn(read_slowly(rig, its, slow));
}

Task<void> make_degraded(SetRig* rig, const Raced* its) {
  co_await rig->create();
  co_await rig->fill();
  co_await rig->verify_all();
  for (const unsigned role : its->gone) {
    const bool dropped = rig->drives->drop(role, DropReason::kFailed, "a test says so");
    REQUIRE(dropped);
  }
  const Error settled = co_await rig->drives->settled();
  REQUIRE(settled == Error::kNone);
}

void spoil_first_block(SetRig* rig, const Raced* its) {
  for (unsigned member = 0; member < its->bad_members; ++member) {
    const unsigned role = rig->set->layout().role(0, member);
    rig->devices[role]->make_unreadable(rig->drives->data_offset());
  }
}

Task<void> overtake(Executor* home, Raced its) {
  SetRig rig(*home, its.shape);
  co_await make_degraded(&rig, &its);
  spoil_first_block(&rig, &its);
  Slow slow;
  begin_slow_read(&rig, &its, &slow);
  co_await home->sleep_for(std::chrono::milliseconds(1));
  for (const auto& device : rig.devices) device->slow_reads({});
  std::vector<std::byte> bytes(its.blocks * 512);
  const Error fast = co_await rig.read_raw(0, bytes);
  CHECK(fast == Error::kMediumError);
  co_await home->sleep_for(kLate / 4);  // The repair has declared the block lost by now.
  REQUIRE_FALSE(rig.drives->lost().empty());
  CHECK_FALSE(slow.ended);
  while (!slow.ended) co_await slow.done.wait();
  CHECK(slow.error == Error::kMediumError);
  co_await rig.end();
}

// The lost block is rewritten before the slow read ends: it returns what was written, or an error.
Task<void> overtake_and_rewrite(Executor* home, Raced its) {
  SetRig rig(*home, its.shape);
  co_await make_degraded(&rig, &its);
  spoil_first_block(&rig, &its);
  Slow slow;
  begin_slow_read(&rig, &its, &slow);
  co_await home->sleep_for(std::chrono::milliseconds(1));
  for (const auto& device : rig.devices) device->slow_reads({});
  std::vector<std::byte> bytes(its.blocks * 512);
  const Error fast = co_await rig.read_raw(0, bytes);
  CHECK(fast == Error::kMediumError);
  co_await home->sleep_for(kLate / 4);
  const Error written = co_await rig.write(0, 64, 77);
  REQUIRE(written == Error::kNone);
  CHECK(rig.drives->lost().empty());
  CHECK_FALSE(slow.ended);
  while (!slow.ended) co_await slow.done.wait();
  const bool right = slow.error == Error::kNone &&
                     std::memcmp(slow.bytes.data(), rig.expected.data(), slow.bytes.size()) == 0;
  CHECK((right || slow.error == Error::kMediumError));
  co_await rig.end();
}

// The layer above loses what it had to write while a read is on its way.
Task<void> lose_meanwhile(Executor* home, Raced its) {
  SetRig rig(*home, its.shape);
  co_await make_degraded(&rig, &its);
  Slow slow;
  begin_slow_read(&rig, &its, &slow);
  co_await home->sleep_for(std::chrono::milliseconds(1));
  const Error lost = co_await rig.set->lose({{.first = 2, .block_count = 3}});
  CHECK(lost == Error::kNone);
  CHECK_FALSE(slow.ended);
  while (!slow.ended) co_await slow.done.wait();
  CHECK(slow.error == Error::kMediumError);
  for (const auto& device : rig.devices) device->slow_reads({});
  const Error written = co_await rig.write(0, 8, 5);
  CHECK(written == Error::kNone);
  const std::string wrong = co_await rig.read(0, 8);
  CHECK(wrong == "");
  co_await rig.end();
}

struct Rewritten {
  SetShape shape;
  Operation operation = Operation::kWrite;
};

// The list of lost blocks on the drives forgets a block only when its new content is durable.
Task<void> rewrite_durably(Executor* home, Rewritten its) {
  SetRig rig(*home, its.shape);
  co_await rig.create();
  co_await rig.fill();
  co_await rig.verify_all();
  const std::uint64_t blocks = rig.set->layout().stripe_blocks();
  Error error = co_await rig.set->lose({{.first = 0, .block_count = blocks}});
  REQUIRE(error == Error::kNone);
  error = co_await rig.set->flush_drives();
  REQUIRE(error == Error::kNone);
  unsigned lists = 0;
  unsigned early = 0;
  for (const auto& device : rig.devices) {
    device->before_change = [&rig, &lists, &early](const TestDrive&, const Request& request) {
      const std::uint64_t at = request.extent.first * 512;
      const bool list =
          at >= kLostSectorsOffset[0] && at < kLostSectorsOffset[1] + kLostSectorsBytes;
      if (request.operation != Operation::kWrite || !list) return;
      ++lists;
      for (const auto& other : rig.devices) {
        early += std::ranges::any_of(other->state().unflushed, [&other](const auto& change) {
          return change->offset >= other->data_from * 512;
        });
      }
    };
  }
  Request request;
  request.operation = its.operation;
  request.extent = {.first = 0, .block_count = blocks};
  if (its.operation == Operation::kWrite) {
    request.data = co_await home->buffers().allocate(blocks * 512);
    request.data.fill_zero();
  }
  const Completion done = co_await rig.set->submit(std::move(request));
  CHECK(done.error == Error::kNone);
  CHECK(lists > 0);
  CHECK(early == 0);
  CHECK(rig.drives->lost().empty());
  for (const auto& device : rig.devices) device->before_change = {};
  co_await rig.end();
}

const std::vector<Raced> kRaced = {
    {{.level = Level::kRaid1, .drives = 2}, {1}},
    {{.level = Level::kRaid10, .drives = 4}, {1}},
    {{.level = Level::kRaid5, .drives = 4}, {2}},
    {{.level = Level::kRaid5, .drives = 4}, {2}, 48},  // Several strips.
    {{.level = Level::kRaid6, .drives = 5}, {2, 3}},
    {{.level = Level::kRaid1, .drives = 2}, {}, 8, 2},
    {{.level = Level::kRaid5, .drives = 4}, {}, 8, 2},
    {{.level = Level::kRaid5, .drives = 4}, {}, 48, 2},
    {{.level = Level::kRaid5, .drives = 4, .integrity = true}, {2}},
    {{.level = Level::kRaid1, .drives = 2, .integrity = true}, {1}},
};

// A thousand strips cost one save and one event, and the list is durable.
Task<void> lose_much(Executor* home, SetShape shape) {
  SetRig rig(*home, shape);
  co_await rig.create();
  co_await rig.fill();
  constexpr Lba kFirstSlot = raid::kLostSectorsOffset[0] / 512;
  constexpr Lba kSlotsEnd = (raid::kLostSectorsOffset[1] + raid::kLostSectorsBytes) / 512;
  unsigned saves = 0;
  rig.devices[0]->before_change = [&saves](const TestDrive&, const Request& request) {
    const Extent& extent = request.extent;
    saves += request.operation == Operation::kWrite && extent.first >= kFirstSlot &&
             extent.first < kSlotsEnd;
  };
  rig.events.clear();
  const std::uint64_t half = rig.set->geometry().block_count / 2;
  const std::vector<Extent> lost = {{.first = 3, .block_count = half},
                                    {.first = half + 100, .block_count = 1}};
  const Error error = co_await rig.set->lose(lost);
  REQUIRE(error == Error::kNone);
  CHECK(saves == 1);
  CHECK(rig.events.size() == 2);
  CHECK(rig.drives->lost().extents() == lost);
  CHECK(rig.set->counters().lost_blocks == half + 1);
  rig.devices[0]->before_change = {};
  for (const auto& device : rig.devices) device->state().visible = device->state().durable;
  raid::DriveMetadata metadata(*rig.devices[0]);
  const auto durable = co_await metadata.read_lost_sectors(rig.drives->superblock().set_uuid);
  REQUIRE(durable.has_value());
  CHECK(durable->extents() == lost);
}

std::string named(const Raced& its) {
  return std::string(describe(its.shape.level)) + (its.shape.integrity ? " integrity " : " ") +
         std::to_string(its.blocks);
}

}  // namespace

TEST_CASE("A read that is overtaken by the loss of its block is a medium error", "[raid][R-A2]") {
  for (const Raced& its : kRaced) {
    CAPTURE(named(its));
    in_world(1, [its](Executor& home) { return overtake(&home, its); });
    in_world(1, [its](Executor& home) { return overtake_and_rewrite(&home, its); });
  }
}

TEST_CASE("A read on its way when the layer above loses blocks is a medium error", "[raid][R-A2]") {
  for (const Raced& its : {Raced{{.level = Level::kRaid0, .drives = 2}, {}},
                           Raced{{.level = Level::kJbod, .drives = 1}, {}},
                           Raced{{.level = Level::kRaid0, .drives = 2}, {}, 32},
                           Raced{{.level = Level::kRaid1, .drives = 2}, {}},
                           Raced{{.level = Level::kRaid5, .drives = 4}, {}},
                           Raced{{.level = Level::kRaid5, .drives = 4}, {}, 48}}) {
    CAPTURE(named(its));
    in_world(1, [its](Executor& home) { return lose_meanwhile(&home, its); });
  }
}

TEST_CASE("The list of lost blocks keeps a block until its new content is durable",
          "[raid][R-C2]") {
  for (const Operation operation : {Operation::kWrite, Operation::kWriteZeroes}) {
    for (const SetShape& shape : {SetShape{.level = Level::kRaid0, .drives = 2},
                                  SetShape{.level = Level::kRaid1, .drives = 2},
                                  SetShape{.level = Level::kRaid5, .drives = 4}}) {
      CAPTURE(describe(shape.level), static_cast<int>(operation));
      const Rewritten its{shape, operation};
      in_world(1, [its](Executor& home) { return rewrite_durably(&home, its); });
    }
  }
}

TEST_CASE("The loss of many strips saves the list of lost blocks once", "[raid][R-D9]") {
  for (const SetShape& shape : {SetShape{.level = Level::kRaid0, .drives = 2},
                                SetShape{.level = Level::kRaid1, .drives = 2},
                                SetShape{.level = Level::kRaid6, .drives = 5}}) {
    CAPTURE(describe(shape.level));
    in_world(1, [shape](Executor& home) { return lose_much(&home, shape); });
  }
}

}  // namespace sandbay::raidtest::lost_reads_test
