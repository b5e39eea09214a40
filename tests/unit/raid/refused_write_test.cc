// A stripe without redundancy left meets a bad place: the write fails, and what was not written
// keeps its bytes, that of drives which are away included, also after a restart and a rebuild.
#include <algorithm>

#include "set_rig.h"

namespace sandbay::raidtest {
namespace {

enum class Refusal : std::uint8_t { kWhole, kTorn, kUnreadable };

// Writes to these blocks of a drive fail with a medium error. Torn: what lies before is taken.
void refuse(TestDrive* drive, Extent bad, Refusal refusal) {
  drive->before_change = [drive, bad, refusal](const TestDrive&, const Request& request) {
    const bool hit = request.operation != Operation::kFlush && request.extent.first < bad.end() &&
                     bad.first < request.extent.end();
    drive->fail_writes_with(hit ? Error::kMediumError : Error::kNone);
    if (!hit || refusal == Refusal::kWhole || request.operation != Operation::kWrite) return;
    if (refusal == Refusal::kUnreadable) {
      for (Lba lba = bad.first; lba < bad.end(); ++lba) drive->make_unreadable(lba);
    }
    std::vector<std::byte> bytes(request.data.byte_count());
    request.data.copy_to(bytes);
    const std::uint64_t before = bad.first - std::min(bad.first, request.extent.first);
    bytes.resize(before * 512);
    drive->state().visible.write(request.extent.first * 512, bytes);
    drive->state().durable.write(request.extent.first * 512, bytes);
  };
}

void heal(TestDrive* drive) {
  drive->before_change = {};
  drive->fail_writes_with(Error::kNone);
}

// Every block of the range that was written is old or new, and everything else of the stripe is
// what it was. The lost ones outside are counted; what is there is expected from now on.
Task<unsigned> look_at(SetRig* rig, std::uint64_t stripe, Extent written,
                       std::vector<std::byte> before) {
  const std::uint64_t blocks = rig->set->layout().stripe_blocks();
  unsigned lost = 0;
  for (Lba lba = stripe * blocks; lba < (stripe + 1) * blocks; ++lba) {
    std::vector<std::byte> now(512);
    const Error error = co_await rig->read_raw(lba, now);
    const auto old = std::span(before).subspan((lba - stripe * blocks) * 512, 512);
    const auto expected = std::span(rig->expected).subspan(lba * 512, 512);
    const bool in_write = lba >= written.first && lba < written.end();
    const bool is_old = std::ranges::equal(now, old);
    const bool is_new = in_write && std::ranges::equal(now, expected);
    if (error != Error::kNone) {
      CHECK(error == Error::kMediumError);
      CHECK(rig->drives->lost().first_overlap({.first = lba, .block_count = 1}).has_value());
      lost += in_write ? 0 : 1;
    } else {
      CAPTURE(lba, written.first, written.end());
      CHECK((is_old || is_new));
    }
    std::ranges::copy(now, expected.begin());
  }
  co_return lost;
}

// A write into one chunk, or over two, refused by the drive of one role.
Task<void> refused(SetRig* rig, std::uint64_t stripe, unsigned bad_role, Refusal refusal,
                   std::uint64_t seed) {
  const Layout& layout = rig->set->layout();
  const std::uint64_t blocks = layout.stripe_blocks();
  Random random(seed);
  const std::uint64_t count = 3 + random.below(layout.strip_blocks());
  const Lba first = stripe * blocks + random.below(blocks - std::min(blocks - 1, count));
  const Extent written{.first = first,
                       .block_count = std::min(count, (stripe + 1) * blocks - first)};
  std::vector<std::byte> before(blocks * 512);
  std::copy_n(rig->expected.begin() + static_cast<std::ptrdiff_t>(stripe * blocks * 512),
              before.size(), before.begin());
  const std::uint32_t row = layout.position(first).row;
  const Lba bad = rig->drives->data_offset() + layout.drive_lba(stripe) +
                  std::min<std::uint32_t>(row + 2, layout.strip_blocks() - 1);
  TestDrive* drive = rig->devices[bad_role].get();
  refuse(drive, {.first = bad, .block_count = 1}, refusal);
  const Error error = co_await rig->write(written.first, written.block_count, seed);
  heal(drive);
  CHECK((error == Error::kNone || error == Error::kMediumError));
  CHECK_FALSE(rig->set->offline());
  std::vector<std::byte> copy = before;
  const unsigned lost = co_await look_at(rig, stripe, written, std::move(copy));
  // Of the row that cannot be read any more, and of what is away there.
  CHECK(lost <= (refusal == Refusal::kUnreadable ? 1 + layout.redundancy() : 0));
  // Where all that is away was to be written, too, nothing else tells what it held.
  if (refusal != Refusal::kUnreadable && rig->drives->lost().empty()) co_return;
  drive->state().unreadable.clear();
  const Error whole = co_await rig->write(stripe * blocks, blocks, seed + 1);
  CHECK(whole == Error::kNone);
}

Task<void> refused_everywhere(Executor* home, SetShape shape) {
  SetRig rig(*home, shape);
  co_await rig.create();
  co_await rig.fill();
  co_await rig.verify_all();
  const unsigned redundancy = rig.set->layout().redundancy();
  for (unsigned role = 0; role < redundancy; ++role) {
    CHECK(rig.drives->drop(role, DropReason::kMissing, "the test says so"));
  }
  co_await rig.drives->settled();
  std::uint64_t seed = 100;
  for (std::uint64_t stripe = 0; stripe < 2ULL * shape.drives; ++stripe) {
    for (unsigned role = redundancy; role < shape.drives; ++role) {
      for (const Refusal refusal : {Refusal::kWhole, Refusal::kTorn, Refusal::kUnreadable}) {
        CAPTURE(stripe, role, static_cast<int>(refusal), seed);
        co_await refused(&rig, stripe, role, refusal, ++seed);
      }
    }
  }
  CHECK(std::ranges::none_of(rig.events, [](const std::string& text) {
    return text.find("offline") != text.npos || text.find("more drives fail") != text.npos;
  }));
  co_await rig.check_everything();
  // As after a kill, and then with drives that know nothing.
  const Error again = co_await rig.start_anew();
  CHECK(again == Error::kNone);
  co_await rig.check_everything();
  for (unsigned role = 0; role < redundancy; ++role) {
    TestDrive& spare = rig.add_drive("spare" + std::to_string(role));
    rig.drives->take_role(role, spare, "spare", {}, make_uuid(home->random()), false);
  }
  co_await rig.drives->settled();
  co_await rig.verify_all();
  CHECK(rig.drives->optimal());
  co_await rig.check_everything();
  CHECK(rig.failures.empty());
  co_await rig.end();
}

}  // namespace

TEST_CASE("A bad place without redundancy left fails the write and costs nothing else",
          "[raid][errors]") {
  for (const SetShape& shape : {SetShape{Level::kRaid5, 3}, SetShape{Level::kRaid5, 5},
                                SetShape{Level::kRaid5, 3, 0, 16384}, SetShape{Level::kRaid6, 4},
                                SetShape{Level::kRaid6, 5}}) {
    CAPTURE(describe(shape.level), shape.drives, shape.strip_bytes);
    in_world(4711, [&shape](Executor& home) { return refused_everywhere(&home, shape); });
  }
}

}  // namespace sandbay::raidtest
