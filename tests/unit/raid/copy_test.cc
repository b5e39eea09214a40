// A drive is copied to another while hosts write: the copy has what they wrote, at levels without
// redundancy, too.
#include "set_rig.h"

namespace sandbay::raidtest::copy_test {
namespace {

using namespace std::chrono_literals;

constexpr SetShape kShapes[] = {
    {.level = Level::kJbod, .drives = 1},
    {.level = Level::kConcatenation, .drives = 2},
    {.level = Level::kRaid0, .drives = 2},
    {.level = Level::kRaid0, .drives = 3, .strip_bytes = 32768},
    {.level = Level::kRaid0, .drives = 2, .integrity = true},
    {.level = Level::kRaid1, .drives = 2},
    {.level = Level::kRaid5, .drives = 3},
};

struct Host {
  SetRig* rig = nullptr;
  Lba first = 0;  // Its own part of the set.
  Lba end = 0;
  bool stop = false;
  bool ended = false;
  std::string wrong;
};

Task<Error> zero(SetRig* rig, Extent extent) {
  Request request;
  request.operation = Operation::kWriteZeroes;
  request.extent = extent;
  const Completion done = co_await rig->set->submit(std::move(request));
  std::memset(rig->expected.data() + extent.first * 512, 0, extent.block_count * 512);
  co_return done.error;
}

Task<void> work(Host* host, Random* random) {
  while (!host->stop && host->wrong.empty()) {
    const std::uint64_t count = random->between(1, 300);
    const Extent extent{random->between(host->first, host->end - count), count};
    Error error = Error::kNone;
    if (random->chance(0.3)) {
      error = co_await zero(host->rig, extent);
    } else {
      error = co_await host->rig->write(extent.first, extent.block_count, random->next());
    }
    if (error != Error::kNone) host->wrong = describe(error);
    if (host->wrong.empty()) host->wrong = co_await host->rig->read(extent.first, count);
  }
  host->ended = true;
}

// Some of what the hosts write is under way when the copy begins.
Task<void> copy_under_load(Executor* home, SetShape shape, std::uint64_t seed) {
  Random random(seed);
  SetRig rig(*home, shape);
  rig.region_stripes = 16;
  co_await rig.create();
  co_await rig.fill();
  for (const auto& device : rig.devices) device->set_latency(2ms);
  std::array<Host, 4> hosts;
  const std::uint64_t part = rig.set->geometry().block_count / hosts.size();
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    hosts[i] = {.rig = &rig, .first = i * part, .end = (i + 1) * part};
    spawn(work(&hosts[i], &random));
  }
  Maintenance maintenance(*rig.set, {});
  maintenance.start();
  const auto role = static_cast<unsigned>(random.below(shape.drives));
  co_await home->sleep_for(Duration(static_cast<std::int64_t>(random.below(20'000'000))));
  rig.drives->begin_replacement(role, rig.add_drive("copy"), "copy", {}, make_uuid(random));
  const Error begun = co_await rig.drives->settled();
  CHECK(begun == Error::kNone);
  maintenance.wake();
  while (rig.drives->replacement(role) != nullptr) co_await home->sleep_for(10ms);
  co_await home->sleep_for(20ms);
  for (Host& host : hosts) {
    host.stop = true;
    while (!host.ended) co_await home->sleep_for(1ms);
    CHECK(host.wrong == "");
  }
  CHECK(rig.drives->drive(role)->name() == "copy");
  co_await rig.check_everything();
  for (const std::string& failure : rig.failures) UNSCOPED_INFO(failure);
  CHECK(rig.failures.empty());
  co_await maintenance.stop();
  co_await rig.end();
}

Task<void> change_one(SetRig* rig, bool zeros, Error* error) {
  const Extent extent{.first = 0, .block_count = 8};
  if (zeros) {
    *error = co_await zero(rig, extent);
  } else {
    *error = co_await rig->write(extent.first, extent.block_count, 77);
  }
}

// The drive has taken a change and not ended it when the copy begins.
Task<void> copy_behind_a_change(Executor* home, SetShape shape, bool zeros) {
  SetRig rig(*home, shape);
  co_await rig.create();
  co_await rig.fill();
  rig.devices[0]->hang();
  Error error = Error::kCancelled;
  spawn(change_one(&rig, zeros, &error));
  co_await home->sleep_for(1ms);
  rig.devices[0]->hang_no_more();
  Maintenance maintenance(*rig.set, {});
  rig.drives->begin_replacement(0, rig.add_drive("copy"), "copy", {}, make_uuid(home->random()));
  maintenance.start();
  co_await home->sleep_for(3s);
  CHECK(error == Error::kCancelled);
  rig.devices[0]->release();
  co_await maintenance.wait_idle();
  CHECK(error == Error::kNone);
  CHECK(rig.drives->drive(0)->name() == "copy");
  co_await rig.check_everything();
  CHECK(rig.failures.empty());
  co_await maintenance.stop();
  co_await rig.end();
}

// All of role 0 is on a replacement that has not taken the role yet.
Task<void> copy_all(SetRig* rig) {
  rig->drives->begin_replacement(0, rig->add_drive("copy"), "copy", {},
                                 make_uuid(rig->set->home().random()));
  const Error begun = co_await rig->drives->settled();
  CHECK(begun == Error::kNone);
  const Layout& layout = rig->set->layout();
  for (auto stripe = layout.first_stripe(0); stripe; stripe = layout.next_stripe(0, *stripe)) {
    const unsigned member = layout.member(*stripe, 0).value_or(0);
    const Error error =
        co_await rig->set->rebuild_member(*stripe, member, rig->drives->replacement(0));
    CHECK(error == Error::kNone);
  }
  for (std::uint64_t region = 0; region < rig->drives->region_count(); ++region) {
    rig->drives->region_fresh(0, true, region);
  }
  const Error saved = co_await rig->drives->save_regions();
  CHECK(saved == Error::kNone);
}

Task<void> promote(SetRig* rig, bool* ended) {
  const Error error = co_await rig->drives->promote_replacement(0);
  CHECK(error == Error::kNone);
  *ended = true;
}

// Until the superblocks name the copy, a start would go back to the old drive.
Task<void> write_to_unsettled_copy(Executor* home, SetShape shape, bool zeros) {
  SetRig rig(*home, shape);
  co_await rig.create();
  co_await rig.fill();
  co_await copy_all(&rig);
  rig.devices.back()->hang();
  bool promoted = false;
  spawn(promote(&rig, &promoted));
  co_await home->sleep_for(1ms);
  CHECK(rig.drives->drive(0)->name() == "copy");
  rig.devices.back()->hang_no_more();
  Error error = Error::kCancelled;
  spawn(change_one(&rig, zeros, &error));
  co_await home->sleep_for(1s);
  CHECK_FALSE(promoted);
  CHECK(error == Error::kCancelled);
  rig.devices.back()->release();
  while (!promoted || error == Error::kCancelled) co_await home->sleep_for(1ms);
  CHECK(error == Error::kNone);
  co_await rig.check_everything();
  CHECK(rig.failures.empty());
  co_await rig.end();
}

Task<void> refuse_while_copied(Executor* home, SetShape shape) {
  SetRig rig(*home, shape);
  co_await rig.create();
  co_await rig.fill();
  co_await copy_all(&rig);
  const std::vector<std::byte> before = rig.expected;
  for (const Error refusal : {Error::kMediumError, Error::kNoSpace, Error::kHardware}) {
    rig.devices[0]->fail_writes_with(refusal);
    const Error error = co_await rig.write(3, 5, 99);
    CHECK(error != Error::kNone);
    rig.devices[0]->fail_writes_with(Error::kNone);
  }
  rig.expected = before;
  bool promoted = false;
  co_await promote(&rig, &promoted);
  co_await rig.check_everything();
  for (const std::string& failure : rig.failures) UNSCOPED_INFO(failure);
  CHECK(rig.failures.empty());
  co_await rig.end();
}

}  // namespace

TEST_CASE("A write to a copy waits until superblocks name the copy", "[raid][N1]") {
  const auto shape = GENERATE(from_range(std::begin(kShapes), std::end(kShapes)));
  const bool zeros = GENERATE(false, true);
  CAPTURE(raid::describe(shape.level), shape.integrity, zeros);
  in_world(1, [&](Executor& home) { return write_to_unsettled_copy(&home, shape, zeros); });
}

TEST_CASE("A write that failed while its drive was copied does not come back", "[raid][N1]") {
  for (const SetShape& shape : kShapes) {
    if (shape.level > Level::kRaid0 || shape.integrity) continue;
    CAPTURE(raid::describe(shape.level));
    in_world(1, [&](Executor& home) { return refuse_while_copied(&home, shape); });
  }
}

TEST_CASE("A drive's copy has a change that was under way when it began", "[raid][N1]") {
  const auto shape = GENERATE(from_range(std::begin(kShapes), std::end(kShapes)));
  const bool zeros = GENERATE(false, true);
  CAPTURE(raid::describe(shape.level), shape.integrity, zeros);
  in_world(1, [&](Executor& home) { return copy_behind_a_change(&home, shape, zeros); });
}

TEST_CASE("A drive's copy has what hosts wrote while it was made", "[raid][N1]") {
  const auto shape = GENERATE(from_range(std::begin(kShapes), std::end(kShapes)));
  for (std::uint64_t seed = 1; seed <= (kSanitized ? 2 : 8); ++seed) {
    CAPTURE(raid::describe(shape.level), shape.integrity, seed);
    in_world(seed, [&](Executor& home) { return copy_under_load(&home, shape, seed); });
  }
}

}  // namespace sandbay::raidtest::copy_test
