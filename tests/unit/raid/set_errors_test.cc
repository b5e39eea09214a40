// What a set makes of drives that fail in a write, of lost blocks and lost records, and of answers
// that outlive it.
#include <algorithm>

#include "block/slice.h"
#include "set_rig.h"

namespace sandbay::raidtest::set_errors_test {
namespace {

using namespace std::chrono_literals;

Task<void> drop(SetRig* rig, unsigned role) {
  CHECK(rig->drives->drop(role, DropReason::kFailed, "the test says so"));
  const Error settled = co_await rig->drives->settled();
  CHECK(settled == Error::kNone);
}

Task<Completion> submit(BlockDevice* device, Operation operation, Lba first, std::uint64_t blocks) {
  Request request;
  request.operation = operation;
  request.extent = {.first = first, .block_count = blocks};
  if (operation == Operation::kRead || operation == Operation::kWrite) {
    request.data = co_await device->home().buffers().allocate(blocks * 512);
    request.data.fill_zero();
  }
  co_return co_await device->submit(std::move(request));
}

// Writes to these blocks of a drive fail with a medium error.
void spoil(TestDrive* drive, Extent bad) {
  drive->before_change = [drive, bad](const TestDrive&, const Request& request) {
    const bool hit = request.operation != Operation::kFlush && request.extent.first < bad.end() &&
                     bad.first < request.extent.end();
    drive->fail_writes_with(hit ? Error::kMediumError : Error::kNone);
  };
}
void heal(TestDrive* drive) {
  drive->before_change = {};
  drive->fail_writes_with(Error::kNone);
}

Task<void> volume_hears_of_it(Executor* home, SetShape shape) {
  SetRig rig(*home, shape);
  co_await rig.create();
  for (unsigned role = 0; role < rig.set->layout().redundancy(); ++role) {
    co_await drop(&rig, role);
  }
  Slice volume(*rig.set, {.first = 1024, .block_count = 1024});
  const Lba data = rig.drives->data_offset();
  for (const auto& device : rig.devices)
    spoil(device.get(), {.first = data, .block_count = 1 << 20});
  for (const Operation operation :
       {Operation::kWriteZeroes, Operation::kUnmap, Operation::kWrite}) {
    const Completion done = co_await submit(&volume, operation, 8, 64);
    CHECK(done.error == Error::kMediumError);
    CHECK(done.first_bad_lba >= 8);
    CHECK(done.first_bad_lba < 72);
  }
  for (const auto& device : rig.devices) heal(device.get());
  co_await rig.end();
}

// Where no data was written, for its parity was not, it is as it was before the write that failed.
Task<void> expect_old_blocks(SetRig* rig, Lba first, std::vector<std::byte> before) {
  for (std::size_t offset = 0; offset < before.size(); offset += 512) {
    std::vector<std::byte> now(512);
    const Error got = co_await rig->read_raw(first + offset / 512, now);
    const auto old = std::span(before).subspan(offset, 512);
    if (got != Error::kNone || !std::ranges::equal(now, old)) continue;
    std::ranges::copy(old, std::span(rig->expected).subspan(first * 512 + offset).begin());
  }
}

// One place cannot be written where no redundancy is left, nor be read: what is there is lost.
Task<void> one_bad_place(Executor* home, SetShape shape) {
  SetRig rig(*home, shape);
  co_await rig.create();
  co_await rig.fill();
  co_await rig.verify_all();
  const unsigned redundancy = rig.set->layout().redundancy();
  for (unsigned role = 0; role < redundancy; ++role) co_await drop(&rig, role);
  TestDrive& drive = *rig.devices[redundancy];
  const Lba bad = rig.drives->data_offset() + 1000;
  spoil(&drive, {.first = bad, .block_count = 8});
  for (Lba lba = bad; lba < bad + 8; ++lba) drive.make_unreadable(lba);
  const Layout::OnDrive at = rig.set->layout().on_drive(redundancy, 1000);
  const Lba first = at.stripe * rig.set->layout().stripe_blocks();
  const std::uint64_t blocks = rig.set->layout().stripe_blocks();
  const auto in_stripe = std::span(rig.expected).subspan(first * 512, blocks * 512);
  std::vector<std::byte> before(in_stripe.begin(), in_stripe.end());
  const Error error = co_await rig.write(first, blocks, 7);
  CHECK(error == Error::kMediumError);
  co_await expect_old_blocks(&rig, first, std::move(before));
  CHECK_FALSE(rig.set->offline());
  CHECK_FALSE(rig.drives->lost().empty());
  // Every block is right or said to be lost, and everything else goes on.
  const auto look = [](SetRig* set_rig, Lba from, std::uint64_t count) -> Task<unsigned> {
    unsigned lost = 0;
    for (Lba lba = from; lba < from + count; ++lba) {
      const std::string wrong = co_await set_rig->read(lba, 1);
      const bool is_lost =
          set_rig->drives->lost().first_overlap({.first = lba, .block_count = 1}).has_value();
      CHECK(wrong == (is_lost ? std::string(describe(Error::kMediumError)) : std::string()));
      lost += is_lost;
    }
    co_return lost;
  };
  unsigned lost = co_await look(&rig, first, blocks);
  CHECK(lost > 0);
  CHECK(lost <= (1 + redundancy) * rig.set->layout().strip_blocks());
  const Error elsewhere = co_await rig.write(first + blocks, blocks, 8);
  CHECK(elsewhere == Error::kNone);
  // A restart, and the record still live: the same place is met again.
  const Error again = co_await rig.start_again();
  CHECK(again == Error::kNone);
  lost = co_await look(&rig, first, blocks);
  CHECK(lost > 0);
  if (redundancy > 0) {  // A rebuild ends, too, and finds another that cannot be read.
    const Lba also = (bad - rig.drives->data_offset()) / 8 * 8 + rig.drives->data_offset() + 16;
    if (shape.strip_bytes > 4096) drive.make_unreadable(also);
    TestDrive& spare = rig.add_drive("spare");
    rig.drives->take_role(0, spare, "spare", {}, make_uuid(home->random()), false);
    co_await rig.drives->settled();
    co_await rig.verify_all();
    CHECK(rig.drives->stale_count(0, false) == 0);
    lost = co_await look(&rig, first, blocks);
  }
  heal(&drive);
  const Error rewritten = co_await rig.write(first, blocks, 9);
  CHECK(rewritten == Error::kNone);
  CHECK(rig.drives->lost().empty());
  lost = co_await look(&rig, first, blocks);
  CHECK(lost == 0);
  co_await rig.check_everything();
  CHECK(rig.failures.empty());
  co_await rig.end();
}

// The answers of reads that were recovered are still on their way when the set goes.
Task<void> answers_outlive(Executor* home) {
  SetRig rig(*home, {Level::kRaid5, 4});
  co_await rig.create();
  co_await rig.fill();
  co_await rig.verify_all();
  co_await drop(&rig, 0);
  BufferList held;
  for (Lba at = 0; at < 2048; at += 8) {
    Completion done = co_await submit(rig.set.get(), Operation::kRead, at, 8);
    CHECK(done.error == Error::kNone);
    held.append(std::move(done.data));
  }
  co_await rig.end();
  CHECK(rig.set == nullptr);
  std::vector<std::byte> bytes(held.byte_count());
  held.copy_to(bytes);
  CHECK(std::memcmp(bytes.data(), rig.expected.data(), bytes.size()) == 0);
}

// A journal that holds nothing, and says that the records which a test names were lost.
class LossyJournal final : public Journal {
 public:
  std::vector<LostUpdate> seen;
  std::vector<LostUpdate> lost;

  std::size_t largest_payload_bytes() const noexcept override { return std::size_t{4} << 20; }
  Task<Result<std::uint64_t>> append(StripeUpdate update) override {
    seen.push_back({.sequence = seen.size() + 1,
                    .stripe = update.stripe,
                    .writes = {update.writes.begin(), update.writes.end()}});
    co_return seen.size();
  }
  void release(std::uint64_t) override {}
  void refuse_waiting(Error) override {}
  Task<Result<JournalRecovery>> recover() override {
    JournalRecovery recovery;
    recovery.lost = lost;
    co_return recovery;
  }
  Task<Error> reset() override { co_return Error::kNone; }
  Task<Error> renew() override { co_return Error::kNone; }
  std::uint64_t used_bytes() const noexcept override { return 0; }
  std::uint64_t size_bytes() const noexcept override { return std::uint64_t{16} << 20; }
  std::uint64_t written_bytes() const noexcept override { return 0; }
  bool under_pressure() const noexcept override { return false; }
};

// Sixteen whole stripes become zeros in one record; the power goes when one drive has done it, and
// the record is lost.
Task<void> lost_run_of_zeroes(Executor* home, bool degraded) {
  SetRig rig(*home, {Level::kRaid5, 4});
  co_await rig.create();
  co_await rig.fill();
  co_await rig.verify_all();
  if (degraded) co_await drop(&rig, 2);
  auto lossy = std::make_unique<LossyJournal>();
  LossyJournal* journal = lossy.get();
  Error error = co_await rig.restart(std::move(lossy));
  REQUIRE(error == Error::kNone);
  std::vector<DriveState> before;
  for (const auto& device : rig.devices) before.push_back(device->state());
  constexpr Lba kFirst = 24 * 100;
  constexpr std::uint64_t kBlocks = 24 * 16;
  const Completion done = co_await submit(rig.set.get(), Operation::kWriteZeroes, kFirst, kBlocks);
  REQUIRE(done.error == Error::kNone);
  REQUIRE(journal->seen.size() == 1);
  error = co_await rig.set->close(kNever);
  CHECK(error == Error::kNone);
  for (unsigned role = 1; role < 4; ++role) rig.devices[role]->state() = before[role];
  journal->lost = journal->seen;
  error = co_await rig.start_again();
  REQUIRE(error == Error::kNone);
  if (!degraded) {
    CHECK_FALSE(rig.drives->redundancy_valid(100));
    CHECK_FALSE(rig.drives->redundancy_valid(115));
  }
  unsigned lost = 0;
  for (Lba lba = kFirst; lba < kFirst + kBlocks; ++lba) {
    Completion read = co_await submit(rig.set.get(), Operation::kRead, lba, 1);
    if (read.error != Error::kNone) {
      CHECK(read.error == Error::kMediumError);
      ++lost;
      continue;
    }
    std::vector<std::byte> bytes(512);
    read.data.copy_to(bytes);
    const bool old = std::memcmp(bytes.data(), rig.expected.data() + lba * 512, 512) == 0;
    CHECK((old || bytes == std::vector<std::byte>(512)));
  }
  CHECK((lost > 0) == degraded);
  co_await rig.end();
}

// The list of lost blocks cannot be written for a moment while two hosts rewrite the same block.
Task<void> forgotten_durably(Executor* home) {
  SetRig rig(*home, {Level::kRaid5, 4});
  co_await rig.create();
  co_await rig.fill();
  co_await rig.verify_all();
  co_await drop(&rig, 3);
  rig.devices[0]->make_unreadable(rig.drives->data_offset());
  const std::string lost = co_await rig.read(0, 1);
  CHECK(lost == describe(Error::kMediumError));
  Error error = co_await rig.write(16, 1, 3);  // Settles what is lost in its rows.
  REQUIRE_FALSE(rig.drives->lost().empty());
  // Lists are written slowly. Whatever is acknowledged is in the durable list by then.
  unsigned writing = 0;
  bool written = false;
  for (const auto& device : rig.devices) {
    device->before_change = [&](const TestDrive&, const Request& request) {
      const std::uint64_t at = request.extent.first * 512;
      const bool list =
          at >= kLostSectorsOffset[0] && at < kLostSectorsOffset[1] + kLostSectorsBytes;
      if (request.operation == Operation::kWrite && list && ++writing == 3) written = true;
    };
  }
  unsigned running = 2;
  Condition ended;
  const auto rewrite = [](SetRig* set_rig, const bool* durable, unsigned* left,
                          Condition* all) -> Task<void> {
    const Error done = co_await set_rig->write(0, 8, 5);
    CHECK(done == Error::kNone);
    CHECK(*durable);
    if (--*left == 0) all->notify_all();
  };
  spawn(rewrite(&rig, &written, &running, &ended));
  spawn(rewrite(&rig, &written, &running, &ended));
  while (running > 0) co_await ended.wait();
  CHECK_FALSE(rig.drives->lost().first_overlap({.first = 0, .block_count = 8}).has_value());
  for (const auto& device : rig.devices) device->before_change = {};
  error = co_await rig.drives->save_lost();
  CHECK(error == Error::kNone);
  co_await rig.end();
}

Task<void> flushed_once(Executor* home) {
  SetRig rig(*home, {Level::kRaid1, 2});
  co_await rig.create();
  rig.devices[0]->fail_with(Error::kHardware);
  const std::uint64_t retries = rig.drives->drive(0)->counters().retries;
  const raid::Drive* drive = rig.drives->drive(0);
  const Error error = co_await rig.drives->flush();
  CHECK(error == Error::kNone);
  CHECK(drive->counters().retries == retries);
  CHECK(rig.drives->absent_roles() == 1);
  co_await rig.drives->settled();
  co_await rig.end();
}

// A drive comes into a role while the owner is told of an event that it does not hold.
Task<void> returns_while_recorded(Executor* home) {
  SetRig rig(*home, {Level::kRaid5, 4});
  co_await rig.create();
  unsigned records = 0;
  raid::Event newest = 0;
  const auto note = [](SetRig* set_rig, unsigned* count, raid::Event* event,
                       raid::Event told) -> Task<Error> {
    *event = told;
    if ((*count)++ == 0) {
      set_rig->drives->take_role(3, *set_rig->devices[3], "back", {},
                                 set_rig->drives->superblock().roles[3].drive, true);
      CHECK((set_rig->drives->live_roles() >> 3 & 1) == 0);
    }
    co_return Error::kNone;
  };
  rig.drives->on_record([&](raid::Event event) { return note(&rig, &records, &newest, event); });
  CHECK(rig.drives->drop(3, DropReason::kMissing, "the test says so"));
  CHECK((rig.drives->live_roles() >> 3 & 1) == 0);
  const Error settled = co_await rig.drives->settled();
  CHECK(settled == Error::kNone);
  CHECK(records == 2);
  CHECK(rig.drives->settled_now());
  CHECK((rig.drives->live_roles() >> 3 & 1) == 1);
  CHECK(rig.drives->superblock().roles[3].known_event == newest);
  rig.drives->on_record({});
  co_await rig.end();
}

// Whole stripes that become zeros with FUA are on flushed drives, and drives know whose I/O it is.
Task<void> zeroed_for_good(Executor* home, SetShape shape) {
  SetRig rig(*home, shape);
  co_await rig.create();
  co_await rig.fill();
  co_await rig.verify_all();
  const Error flushed = co_await rig.set->flush_drives();
  CHECK(flushed == Error::kNone);
  unsigned others = 0;
  for (const auto& device : rig.devices) {
    device->before_change = [&others](const TestDrive& drive, const Request& request) {
      const bool data = request.extent.first >= drive.data_from;
      others += data && request.operation != Operation::kFlush && request.origin != Origin::kCopy;
    };
  }
  Request request;
  request.operation = Operation::kWriteZeroes;
  request.force_unit_access = true;
  request.origin = Origin::kCopy;
  request.extent = {.first = 0, .block_count = rig.set->layout().stripe_blocks() * 20ULL + 3};
  const Completion done = co_await rig.set->submit(std::move(request));
  CHECK(done.error == Error::kNone);
  CHECK(others == 0);
  const bool journaled = rig.journal != nullptr;
  for (const auto& device : rig.devices) {
    CHECK((journaled || device->state().unflushed.empty()));
    device->before_change = {};
  }
  co_await rig.end();
}

// A spare on storage that cannot free space has taken a role since the set began to free it.
Task<void> one_frees_nothing(Executor* home, SetShape shape) {
  SetRig rig(*home, shape);
  co_await rig.create();
  co_await rig.fill();
  co_await rig.verify_all();
  CHECK(rig.set->geometry().unmap);
  co_await drop(&rig, 1);
  TestDrive& spare = rig.add_drive("spare");
  spare.mutable_geometry().unmap = false;
  rig.drives->take_role(1, spare, "spare", {}, make_uuid(home->random()), false);
  const Error settled = co_await rig.drives->settled();
  CHECK(settled == Error::kNone);
  co_await rig.verify_all();
  const std::uint64_t blocks = rig.set->layout().stripe_blocks() * 20ULL;
  const Completion done = co_await submit(rig.set.get(), Operation::kUnmap, 0, blocks);
  CHECK(done.error == Error::kNone);
  CHECK(rig.drives->absent_roles() == 0);
  std::fill_n(rig.expected.begin(), blocks * 512, std::byte{0});
  co_await rig.check_everything();
  CHECK(rig.failures.empty());
  co_await rig.end();
}

// It costs no memory for ever.
Task<void> come_and_go(Executor* home) {
  SetRig rig(*home, {Level::kRaid1, 2});
  co_await rig.create();
  co_await rig.fill();
  co_await rig.verify_all();
  for (unsigned i = 0; i < 200; ++i) {
    co_await drop(&rig, 1);
    TestDrive& device = *rig.devices[1];
    const Uuid uuid = rig.drives->superblock().roles[1].drive;
    rig.drives->take_role(1, device, "d1", {}, uuid, true);
    const Error settled = co_await rig.drives->settled();
    CHECK(settled == Error::kNone);
    const Error written = co_await rig.write(i * 8, 8, i);
    CHECK(written == Error::kNone);
  }
  CHECK(rig.drives->kept_drives() < 100);
  co_await rig.verify_all();
  co_await rig.check_everything();
  CHECK(rig.failures.empty());
  co_await rig.end();
}

// Somebody above has lost what was to be written there.
Task<void> lost_from_above(Executor* home, SetShape shape) {
  SetRig rig(*home, shape);
  co_await rig.create();
  co_await rig.fill();
  std::vector<Extent> extents;
  extents.push_back({.first = 5, .block_count = 30});
  extents.push_back({.first = 100, .block_count = 1});
  const Error lost = co_await rig.set->lose(extents);
  CHECK(lost == Error::kNone);
  for (const bool again : {false, true}) {
    CAPTURE(again);
    const Completion done = co_await submit(rig.set.get(), Operation::kRead, 0, 64);
    CHECK(done.error == Error::kMediumError);
    CHECK(done.first_bad_lba == 5);
    const Completion other = co_await submit(rig.set.get(), Operation::kRead, 100, 1);
    CHECK(other.error == Error::kMediumError);
    const std::string beside = co_await rig.read(0, 5);
    CHECK(beside.empty());
    const std::string behind = co_await rig.read(101, 64);
    CHECK(behind.empty());
  }
  // Redundancy fits as before.
  co_await rig.verify_all();
  const Error written = co_await rig.write(5, 30, 77);
  CHECK(written == Error::kNone);
  const std::string now = co_await rig.read(0, 64);
  CHECK(now.empty());
  const Completion zeroed = co_await submit(rig.set.get(), Operation::kWriteZeroes, 100, 1);
  CHECK(zeroed.error == Error::kNone);
  const Completion zeros = co_await submit(rig.set.get(), Operation::kRead, 100, 1);
  CHECK(zeros.error == Error::kNone);
  CHECK(rig.drives->lost().empty());
  co_await rig.end();
}

}  // namespace

TEST_CASE("A drive that comes and goes is not kept as often as it came", "[raid][errors]") {
  in_world(3, [](Executor& home) { return come_and_go(&home); });
}

TEST_CASE("Blocks that are lost above are medium errors until they are rewritten",
          "[raid][errors]") {
  for (const SetShape& shape :
       {SetShape{Level::kJbod, 1}, SetShape{Level::kRaid0, 2}, SetShape{Level::kRaid10, 4},
        SetShape{Level::kRaid0, 2, 0, 4096, true}, SetShape{Level::kRaid5, 4},
        SetShape{Level::kRaid5, 4, 0, 4096, true}}) {
    CAPTURE(describe(shape.level), shape.integrity);
    in_world(9, [&shape](Executor& home) { return lost_from_above(&home, shape); });
  }
}

TEST_CASE("A volume hears of a write that a drive cannot do, whatever block it says",
          "[raid][errors]") {
  for (const SetShape& shape : {SetShape{Level::kJbod, 1}, SetShape{Level::kRaid0, 2},
                                SetShape{Level::kRaid1, 2}, SetShape{Level::kRaid5, 3}}) {
    CAPTURE(describe(shape.level));
    in_world(1, [&shape](Executor& home) { return volume_hears_of_it(&home, shape); });
  }
}

TEST_CASE("One bad place costs a set without redundancy left no more than that", "[raid][errors]") {
  for (const SetShape& shape :
       {SetShape{Level::kRaid5, 4}, SetShape{Level::kRaid6, 5}, SetShape{Level::kRaid50, 6, 2},
        SetShape{Level::kRaid5, 4, 0, 65536}}) {
    CAPTURE(describe(shape.level));
    in_world(2, [&shape](Executor& home) { return one_bad_place(&home, shape); });
  }
}

TEST_CASE("Answers that were recovered outlive the set", "[raid][errors]") {
  in_world(3, [](Executor& home) { return answers_outlive(&home); });
}

TEST_CASE("Every stripe of a lost record is looked after", "[raid][errors]") {
  for (const bool degraded : {false, true}) {
    in_world(4, [degraded](Executor& home) { return lost_run_of_zeroes(&home, degraded); });
  }
}

TEST_CASE("A rewritten block is durably no longer lost before anybody is told", "[raid][errors]") {
  in_world(5, [](Executor& home) { return forgotten_durably(&home); });
}

TEST_CASE("Whole stripes become zeros as durably as asked, and for whom", "[raid][errors]") {
  for (const SetShape& shape :
       {SetShape{Level::kRaid1, 2}, SetShape{Level::kRaid10, 4}, SetShape{Level::kRaid5, 4}}) {
    CAPTURE(describe(shape.level));
    in_world(8, [&shape](Executor& home) { return zeroed_for_good(&home, shape); });
  }
}

TEST_CASE("A drive that cannot free space is not lost for it", "[raid][errors]") {
  for (const SetShape& shape : {SetShape{Level::kRaid1, 2}, SetShape{Level::kRaid5, 4}}) {
    CAPTURE(describe(shape.level));
    in_world(9, [&shape](Executor& home) { return one_frees_nothing(&home, shape); });
  }
}

TEST_CASE("A flush that has failed is not tried again", "[raid][errors]") {
  in_world(6, [](Executor& home) { return flushed_once(&home); });
}

TEST_CASE("An event that a drive came too late for is not said to be on it", "[raid][errors]") {
  in_world(7, [](Executor& home) { return returns_while_recorded(&home); });
}

}  // namespace sandbay::raidtest::set_errors_test
