// A stripe without redundancy left meets a bad place: the write fails, and what was not written
// keeps its bytes, that of drives which are away included, also after a restart and a rebuild.
#include <algorithm>
#include <array>
#include <bit>

#include "set_rig.h"

namespace sandbay::raidtest::refused_write_test {
namespace {

// Torn: what lies before the bad place is taken. Unreadable: what was there cannot be read any
// more. Other: it is neither old nor new.
enum class Refusal : std::uint8_t { kWhole, kTorn, kUnreadable, kOther };
constexpr std::array kRefusals = {Refusal::kUnreadable, Refusal::kOther, Refusal::kWhole,
                                  Refusal::kTorn};

void put_bytes(TestDrive* drive, Lba lba, std::span<const std::byte> bytes) {
  drive->state().visible.write(lba * 512, bytes);
  drive->state().durable.write(lba * 512, bytes);
}

// Writes to these blocks of a drive fail with a medium error.
void refuse(TestDrive* drive, Extent bad, Refusal refusal, bool* any) {
  drive->before_change = [drive, bad, refusal, any](const TestDrive&, const Request& request) {
    const bool hit = request.operation != Operation::kFlush && request.extent.first < bad.end() &&
                     bad.first < request.extent.end();
    drive->fail_writes_with(hit ? Error::kMediumError : Error::kNone);
    *any |= hit;
    if (!hit || refusal == Refusal::kWhole || request.operation != Operation::kWrite) return;
    if (refusal == Refusal::kUnreadable) {
      for (Lba lba = bad.first; lba < bad.end(); ++lba) drive->make_unreadable(lba);
    }
    if (refusal == Refusal::kOther) {
      put_bytes(drive, bad.first, std::vector(bad.block_count * 512, std::byte{0x5a}));
    }
    std::vector<std::byte> bytes(request.data.byte_count());
    request.data.copy_to(bytes);
    const std::uint64_t before = bad.first - std::min(bad.first, request.extent.first);
    bytes.resize(before * 512);
    put_bytes(drive, request.extent.first, bytes);
  };
}

void heal(TestDrive* drive) {
  drive->before_change = {};
  drive->fail_writes_with(Error::kNone);
}

// Every block of the range that was written is old or new (new, if that was acknowledged), and
// everything else of the stripe is what it was. The lost ones outside are counted; what is there is
// expected from now on.
Task<unsigned> look_at(SetRig* rig, std::uint64_t stripe, Extent written, bool acknowledged,
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
      CHECK_FALSE((acknowledged && in_write));
      CHECK(error == Error::kMediumError);
      CHECK(rig->drives->lost().first_overlap({.first = lba, .block_count = 1}).has_value());
      lost += in_write ? 0 : 1;
    } else {
      CAPTURE(lba, written.first, written.end());
      CHECK((is_new || (is_old && !(acknowledged && in_write))));
    }
    std::ranges::copy(now, expected.begin());
  }
  co_return lost;
}

struct Shape {
  SetShape set;
  int copied = -1;          // The role has a replacement that is whole.
  bool unverified = false;  // Drives had something on them, of which redundancy was never valid.
};

// How often a write was refused.
struct Refused {
  std::array<unsigned, kRefusals.size()> times{};
};

// Whether the range touches a chunk of a drive that is away.
bool touches_away(SetRig* rig, Extent written) {
  const Layout& layout = rig->set->layout();
  for (Lba lba = written.first; lba < written.end(); ++lba) {
    const Layout::Position at = layout.position(lba);
    if (rig->drives->drive(layout.role(at.stripe, at.chunk)) == nullptr) return true;
  }
  return false;
}

// A write into one chunk, or over two, refused by the drives of some roles.
Task<void> refused(SetRig* rig, std::uint64_t stripe, std::vector<unsigned> bad_roles,
                   Refusal refusal, std::uint64_t seed, Refused* refused) {
  const Layout& layout = rig->set->layout();
  const std::uint64_t blocks = layout.stripe_blocks();
  Random random(seed);
  const std::uint64_t count = 3 + random.below(layout.strip_blocks());
  const Lba first = stripe * blocks + random.below(blocks - std::min(blocks - 1, count));
  const Extent written{.first = first,
                       .block_count = std::min(count, (stripe + 1) * blocks - first)};
  // Only parity tells that it is neither, and only where its old content is known.
  const unsigned member = layout.member(stripe, bad_roles[0]).value_or(0);
  if (refusal == Refusal::kOther &&
      (member < layout.data_chunks() || bad_roles.size() > 1 || touches_away(rig, written))) {
    co_return;
  }
  std::vector<std::byte> before(blocks * 512);
  std::copy_n(rig->expected.begin() + static_cast<std::ptrdiff_t>(stripe * blocks * 512),
              before.size(), before.begin());
  const std::uint32_t row = layout.position(first).row;
  const Lba bad = rig->drives->data_offset() + layout.drive_lba(stripe) +
                  std::min<std::uint32_t>(row + 2, layout.strip_blocks() - 1);
  bool any = false;
  for (const unsigned role : bad_roles) {
    refuse(rig->devices[role].get(), {.first = bad, .block_count = 1}, refusal, &any);
  }
  const Error error = co_await rig->write(written.first, written.block_count, seed);
  for (const unsigned role : bad_roles) heal(rig->devices[role].get());
  CHECK(error == (any ? Error::kMediumError : Error::kNone));
  refused->times[static_cast<std::size_t>(refusal)] += any;
  CHECK_FALSE(rig->set->offline());
  std::vector<std::byte> copy = before;
  const unsigned lost =
      co_await look_at(rig, stripe, written, error == Error::kNone, std::move(copy));
  // Of the row that cannot be read any more, and of what is away there.
  const bool gone = refusal == Refusal::kUnreadable || refusal == Refusal::kOther;
  CHECK(lost <= (gone ? bad_roles.size() + layout.redundancy() : 0));
  // Where all that is away was to be written, too, nothing else tells what it held.
  if (refusal != Refusal::kUnreadable && rig->drives->lost().empty()) co_return;
  for (const unsigned role : bad_roles) rig->devices[role]->state().unreadable.clear();
  const Error whole = co_await rig->write(stripe * blocks, blocks, seed + 1);
  CHECK(whole == Error::kNone);
}

// A replacement of the role's drive that has all of it, and has not taken the role yet.
Task<void> copy_drive(SetRig* rig, unsigned role) {
  TestDrive& spare = rig->add_drive("copy");
  rig->drives->begin_replacement(role, spare, "copy", {}, make_uuid(rig->set->home().random()));
  Error error = co_await rig->drives->settled();
  CHECK(error == Error::kNone);
  const Layout& layout = rig->set->layout();
  for (auto stripe = layout.first_stripe(role, 0); stripe;
       stripe = layout.next_stripe(role, *stripe)) {
    const unsigned member = layout.member(*stripe, role).value_or(0);
    error = co_await rig->set->rebuild_member(*stripe, member, rig->drives->replacement(role));
    CHECK(error == Error::kNone);
  }
  for (std::uint64_t region = 0; region < rig->drives->region_count(); ++region) {
    rig->drives->region_fresh(role, true, region);
  }
  error = co_await rig->drives->save_regions();
  CHECK(error == Error::kNone);
}

Task<void> begin(SetRig* rig, Shape shape) {
  co_await rig->create();
  if (shape.unverified) {
    co_await rig->fill_all_with_junk();
  } else {
    co_await rig->fill();
    co_await rig->verify_all();
  }
  if (shape.copied >= 0) co_await copy_drive(rig, static_cast<unsigned>(shape.copied));
  for (unsigned role = 0; role < rig->set->layout().redundancy(); ++role) {
    CHECK(rig->drives->drop(role, DropReason::kMissing, "the test says so"));
  }
  co_await rig->drives->settled();
  if (!shape.unverified) co_return;
  CHECK(rig->drives->unverified_count() > 0);
  for (Lba lba = 0; lba < rig->set->geometry().block_count; lba += 8) {
    const Error error =
        co_await rig->read_raw(lba, std::span(rig->expected).subspan(lba * 512, 8 * 512));
    CHECK(error == Error::kNone);
  }
}

Task<void> refused_everywhere(Executor* home, Shape shape, Refused* times) {
  SetRig rig(*home, shape.set);
  co_await begin(&rig, shape);
  const unsigned redundancy = rig.set->layout().redundancy();
  const unsigned drives = shape.set.drives;
  std::uint64_t seed = 100;
  for (std::uint64_t stripe = 0; stripe < 2ULL * drives; ++stripe) {
    // Nothing comes last that would give the replacement everything anew.
    const bool down = shape.copied >= static_cast<int>(redundancy);
    for (unsigned i = redundancy; i < drives; ++i) {
      const unsigned role = down ? drives - 1 - (i - redundancy) : i;
      for (const Refusal refusal : kRefusals) {
        CAPTURE(stripe, role, static_cast<int>(refusal), seed);
        co_await refused(&rig, stripe, {role}, refusal, ++seed, times);
        if (role + 1 < drives) {
          co_await refused(&rig, stripe, {role, role + 1}, refusal, ++seed, times);
        }
      }
    }
    // As after a kill: what has failed does not come back.
    const Error again = co_await rig.start_anew();
    CHECK(again == Error::kNone);
    const std::uint64_t blocks = rig.set->layout().stripe_blocks();
    const std::string wrong = co_await rig.read(stripe * blocks, blocks);
    CHECK(wrong.empty());
  }
  const auto told = [&rig](const char* what) {
    return std::ranges::count_if(
        rig.events, [what](const std::string& text) { return text.find(what) != text.npos; });
  };
  CHECK(told("offline") + told("more drives fail") == 0);
  CHECK(told("refused a write") > 0);
  CHECK(told("refused a write") <= 2 * drives * (drives - redundancy));  // Once for each start.
  co_await rig.check_everything();
  if (shape.copied >= 0) {
    const auto role = static_cast<unsigned>(shape.copied);
    REQUIRE(rig.drives->replacement(role) != nullptr);
    const Error promoted = co_await rig.drives->promote_replacement(role);
    CHECK(promoted == Error::kNone);
    co_await rig.check_everything();
    // What it has of a parity counts as soon as another goes.
    const bool dropped = rig.drives->drop(drives - 1, DropReason::kFailed, "the test says so");
    CHECK(dropped == (role < redundancy));
    co_await rig.drives->settled();
    co_await rig.check_everything();
  }
  // And then with drives that know nothing.
  for (unsigned role = 0; role < drives; ++role) {
    if (rig.drives->drive(role) != nullptr) continue;
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

// A whole strip is refused and cannot be read either: that is lost as a whole, and so told.
Task<void> whole_strip(Executor* home) {
  SetRig rig(*home, {Level::kRaid5, 4, 0, 65536});
  co_await begin(&rig, {});
  const Layout& layout = rig.set->layout();
  const std::uint32_t rows = layout.strip_blocks();
  const unsigned p = layout.role(0, layout.data_chunks());
  const unsigned role = p != 1 ? 1 : 2;
  REQUIRE(p != 0);
  bool any = false;
  const Lba bad = rig.drives->data_offset() + layout.drive_lba(0);
  refuse(rig.devices[p].get(), {.first = bad, .block_count = rows}, Refusal::kUnreadable, &any);
  rig.events.clear();
  rig.devices[role]->counts = {};
  std::uint64_t saves = 0;
  rig.devices[role]->before_change = [&](const TestDrive& drive, const Request& request) {
    saves += request.operation == Operation::kWrite && request.extent.first < drive.data_from;
  };
  const Lba first = layout.lba({.stripe = 0, .chunk = layout.member(0, role).value_or(0)});
  const Error error = co_await rig.write(first, rows, 5);
  heal(rig.devices[p].get());
  heal(rig.devices[role].get());
  CHECK(any);
  CHECK(error == Error::kMediumError);
  CHECK(rig.drives->lost().lost_blocks() == rows);
  CHECK(rig.events.size() == 1);
  CHECK(saves < 10);
  co_await rig.end();
}

// Of an update whose replay is refused only the bad place is lost, and what is away there.
Task<void> replayed(Executor* home, SetShape shape) {
  SetRig rig(*home, shape);
  co_await begin(&rig, {.set = shape});
  const Layout& layout = rig.set->layout();
  const std::uint64_t blocks = layout.stripe_blocks();
  for (std::uint64_t stripe = 0; stripe < shape.drives; ++stripe) {
    const MemberSet away = rig.drives->unreadable(stripe) & ((1U << layout.data_chunks()) - 1);
    for (unsigned member = 0; member < layout.width(); ++member) {
      const unsigned role = layout.role(stripe, member);
      if (rig.drives->drive(role) == nullptr) continue;
      CAPTURE(stripe, role);
      const Error flushed = co_await rig.set->flush_drives();
      CHECK(flushed == Error::kNone);
      const Error written = co_await rig.write(stripe * blocks, blocks, stripe + 99);
      CHECK(written == Error::kNone);
      bool any = false;
      const Lba bad = rig.drives->data_offset() + layout.drive_lba(stripe) + 5;
      refuse(rig.devices[role].get(), {.first = bad, .block_count = 1}, Refusal::kWhole, &any);
      const Error again = co_await rig.start_anew();
      heal(rig.devices[role].get());
      CHECK(again == Error::kNone);
      CHECK(any);
      const unsigned data = member < layout.data_chunks() ? 1 : 0;
      const auto lost = static_cast<unsigned>(std::popcount(away)) + data;
      CHECK(rig.drives->lost().lost_blocks() == lost);
      const Error whole = co_await rig.write(stripe * blocks, blocks, stripe + 77);
      CHECK(whole == Error::kNone);
    }
  }
  co_await rig.check_everything();
  CHECK(rig.failures.empty());
  co_await rig.end();
}

}  // namespace

TEST_CASE("A bad place without redundancy left fails the write and costs nothing else",
          "[raid][errors]") {
  std::array<unsigned, kRefusals.size()> all{};
  for (const Shape& shape :
       {Shape{{Level::kRaid5, 3}}, Shape{{Level::kRaid5, 5}}, Shape{{Level::kRaid5, 3, 0, 16384}},
        Shape{{Level::kRaid6, 4}}, Shape{{Level::kRaid6, 5}}, Shape{{Level::kRaid5, 4}, 1},
        Shape{{Level::kRaid6, 5}, 2}, Shape{{Level::kRaid5, 4}, 0}, Shape{{Level::kRaid6, 5}, 0},
        Shape{{Level::kRaid6, 5}, 1}, Shape{{Level::kRaid5, 4}, -1, true},
        Shape{{Level::kRaid6, 5}, -1, true}}) {
    // Larger sets differ in what they try, not in what they do.
    if (kSanitized && shape.set.drives == 5 && shape.set.level == Level::kRaid5) continue;
    CAPTURE(describe(shape.set.level), shape.set.drives, shape.copied, shape.unverified);
    Refused times;
    in_world(4711, [&](Executor& home) { return refused_everywhere(&home, shape, &times); });
    for (std::size_t i = 0; i < all.size(); ++i) {
      CAPTURE(i);
      CHECK((times.times[i] > 0 || i == static_cast<std::size_t>(Refusal::kOther)));
      all[i] += times.times[i];
    }
  }
  CHECK(all[static_cast<std::size_t>(Refusal::kOther)] > 5);
}

TEST_CASE("A strip that is refused as a whole and cannot be read is lost at once",
          "[raid][errors]") {
  in_world(4712, [](Executor& home) { return whole_strip(&home); });
}

TEST_CASE("A replay that is refused loses the bad place alone", "[raid][errors]") {
  for (const SetShape& shape :
       {SetShape{Level::kRaid5, 4, 0, 16384}, SetShape{Level::kRaid6, 5, 0, 16384}}) {
    in_world(4713, [&shape](Executor& home) { return replayed(&home, shape); });
  }
}

}  // namespace sandbay::raidtest::refused_write_test
