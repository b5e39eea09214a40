// A managed set across stops, kills and power cuts, with its journal on the drives, in NVRAM, and
// in an NVRAM that has gone.
#include "raid/managed_set.h"

#include <algorithm>

#include "controller_rig.h"
#include "nvram/simulated_board.h"

namespace sandbay::raidtest::managed_set_test {
namespace {

using namespace std::chrono_literals;
using raid::Level;

Task<void> expect_good(Task<std::string> doing) {
  const std::string wrong = co_await std::move(doing);
  CHECK(wrong == "");
}

Task<void> expect_whole(ControllerRig* rig) {
  const bool whole = co_await rig->wait_for([rig] { return rig->whole(); });
  if (!whole) {
    for (const ControllerEvent& event : rig->events) UNSCOPED_INFO(event.text);
  }
  REQUIRE(whole);
}

Task<void> expect_stopped(ControllerRig* rig) {
  const bool stopped = co_await rig->stop();
  REQUIRE(stopped);
}

Task<void> make(ControllerRig* rig, Level level, unsigned count) {
  std::vector<std::string> names;
  for (unsigned i = 0; i < count; ++i) {
    names.push_back("d" + std::to_string(i));
    rig->add(names.back());
  }
  co_await rig->start();
  const std::string error =
      co_await rig->create(level, names, [](NewSet& wanted) { wanted.region_stripes = 16; });
  REQUIRE(error == "");
}

// A drive without power loses what was not flushed.
void lose_unflushed(TestDrive& drive, Random& random) {
  drive.state() = after_power_cut(drive.state(), random);
}

Task<void> cut_power(ControllerRig* rig, Random* random) {
  co_await rig->kill();
  for (const auto& drive : rig->drives) lose_unflushed(*drive, *random);
}

TEST_CASE("A managed set is the same device while it runs, is stopped and runs again",
          "[raid][managed]") {
  for_worlds(3, [](Executor* home) -> Task<void> {
    ControllerRig rig(*home);
    co_await make(&rig, Level::kRaid5, 4);
    ManagedSet& set = *rig.set;
    CHECK(set.running());
    CHECK(set.refusal().empty());
    CHECK(set.health() == Health::kGood);
    CHECK(set.description() == "raid5 set of 4 drives");
    co_await expect_good(rig.fill());
    const Geometry before = set.geometry();
    Controller::Outcome done = co_await rig.controller->remove_drive("d0");
    CHECK(done.has_value());
    CHECK(set.health() == Health::kDegraded);
    done = co_await rig.controller->remove_drive("d1");
    CHECK(done.has_value());
    CHECK(rig.set == &set);
    CHECK_FALSE(set.running());
    CHECK_FALSE(set.assembled());
    CHECK(set.health() == Health::kMissing);
    CHECK(set.name() == "set");
    CHECK(set.geometry().block_count == before.block_count);
    CHECK_FALSE(set.refusal().empty());
    for (const Operation operation : {Operation::kFlush, Operation::kUnmap}) {
      Request request;
      request.operation = operation;
      const Completion refused = co_await set.submit(std::move(request));
      CHECK(refused.error == Error::kNotReady);
    }
    const auto run = co_await set.provisioning(0, 8);
    CHECK((!run.has_value() && run.error() == Error::kNotReady));
    const Error again = co_await set.stop(home->now() + 1s);
    CHECK(again == Error::kNone);
    done = co_await rig.controller->insert_drive("d1", &rig.drive("d1"));
    CHECK(done.has_value());
    CHECK(set.running());
    CHECK(set.refusal().empty());
    CHECK(set.geometry().block_count == before.block_count);
    CHECK(set.geometry().physical_block_bytes == before.physical_block_bytes);
    CHECK(rig.told(SetEvent::Kind::kOnline) == 1);
    co_await expect_good(rig.check());
    co_await expect_stopped(&rig);
  });
}

TEST_CASE("A set stopped in order is clean, another is not, and the owner knows its newest event",
          "[raid][managed]") {
  for_worlds(3, [](Executor* home) -> Task<void> {
    ControllerRig rig(*home);
    co_await make(&rig, Level::kRaid1, 2);
    co_await expect_good(rig.fill());
    CHECK_FALSE(rig.set->superblock().clean);
    const Uuid uuid = rig.set->uuid();
    CHECK(rig.remembered.minimum_events[uuid] == rig.set->superblock().event);
    co_await expect_stopped(&rig);
    co_await rig.start();
    CHECK(rig.set->drives()->unverified_count() == 0);
    co_await expect_good(rig.write_some(10));
    co_await rig.kill();
    co_await rig.start();
    CHECK(rig.set->drives()->unverified_count() > 0);
    co_await expect_whole(&rig);
    co_await expect_good(rig.check());
    CHECK(rig.remembered.minimum_events[uuid] == rig.set->superblock().event);
    // Its newest drives are away, and what is left is too old: refused, not started.
    rig.drive("d0").fail_with(Error::kNotReady);
    co_await expect_good(rig.write_some(10));
    co_await expect_stopped(&rig);
    co_await rig.start();
    CHECK(rig.set->running());
    co_await expect_stopped(&rig);
    rig.drive("d0").fail_with(Error::kNone);
    co_await rig.start({{"d0", &rig.drive("d0")}});
    REQUIRE(rig.set != nullptr);
    CHECK_FALSE(rig.set->running());
    CHECK(rig.set->refusal().find("set") == 0);
    co_await expect_stopped(&rig);
    co_await rig.start();
    co_await expect_whole(&rig);
    co_await expect_good(rig.check());
    co_await expect_stopped(&rig);
  });
}

TEST_CASE("Power cuts keep every acknowledged write, also of drives that are away",
          "[raid][managed]") {
  for (const Level level : {Level::kRaid1, Level::kRaid5, Level::kRaid6, Level::kRaid10}) {
    CAPTURE(raid::describe(level));
    for_worlds(
        6,
        [](Executor* home, Level level) -> Task<void> {
          ControllerRig rig(*home);
          co_await make(&rig, level, 4);
          Random random(home->random().next());
          for (unsigned round = 0; round < 4; ++round) {
            co_await expect_good(rig.write_some(40));
            if (level == Level::kRaid1 || level == Level::kRaid10) {
              // Without a journal, what was not flushed may go.
              Request flush;
              flush.operation = Operation::kFlush;
              const Completion flushed = co_await rig.set->submit(std::move(flush));
              CHECK(flushed.error == Error::kNone);
            }
            co_await cut_power(&rig, &random);
            if (round % 2 == 0) {
              co_await rig.start();
            } else {
              std::vector<raid::NamedDevice> some = rig.named();
              some.erase(some.begin() + static_cast<std::ptrdiff_t>(random.below(4)));
              co_await rig.start(some);
              REQUIRE(rig.set != nullptr);
              REQUIRE(rig.set->running());
              co_await expect_good(rig.check());
              co_await expect_good(rig.write_some(10));
              co_await expect_stopped(&rig);
              co_await rig.start();
            }
            REQUIRE(rig.set != nullptr);
            co_await expect_whole(&rig);
            co_await expect_good(rig.check());
          }
          co_await expect_stopped(&rig);
        },
        level);
  }
}

TEST_CASE("A drive that is pulled loses what it had not flushed, and gets it again",
          "[raid][managed]") {
  for (const Level level : {Level::kRaid1, Level::kRaid5, Level::kRaid6}) {
    CAPTURE(raid::describe(level));
    for_worlds(
        6,
        [](Executor* home, Level level) -> Task<void> {
          ControllerRig rig(*home);
          co_await make(&rig, level, 4);
          Random random(home->random().next());
          for (unsigned round = 0; round < 4; ++round) {
            TestDrive& drive = *rig.drives[random.below(4)];
            co_await expect_good(rig.write_some(30));
            drive.fail_with(Error::kNotReady);
            lose_unflushed(drive, random);
            co_await expect_good(rig.write_some(30));
            drive.fail_with(Error::kNone);
            co_await expect_whole(&rig);
            co_await expect_good(rig.check());
          }
          // Nothing but the drive that was away has what it should.
          for (const unsigned other : {0U, 1U}) {
            const std::string name = "d" + std::to_string(other);
            const Controller::Outcome out = co_await rig.controller->remove_drive(name);
            CHECK(out.has_value());
            co_await expect_good(rig.check());
            const Controller::Outcome in =
                co_await rig.controller->insert_drive(name, &rig.drive(name));
            CHECK(in.has_value());
            co_await expect_whole(&rig);
          }
          co_await expect_stopped(&rig);
        },
        level);
  }
}

TEST_CASE("The journal is in NVRAM where there is one; without it all redundancy is verified",
          "[raid][managed]") {
  for_worlds(4, [](Executor* home) -> Task<void> {
    nvram::SimulatedBoard board(std::uint64_t{32} << 20);
    nvram::NvramOptions memory_options;
    memory_options.path = "nvram";
    memory_options.boot_id = "boot";
    auto memory = co_await nvram::Nvram::open(*home, board, memory_options);
    REQUIRE(memory.has_value());
    ControllerRig rig(*home);
    rig.options.set.nvram = memory->get();
    rig.options.set.nvram_journal_bytes = 4 << 20;
    co_await make(&rig, Level::kRaid5, 4);
    CHECK(rig.set->superblock().journal_bytes == 0);
    CHECK(rig.set->set()->journal() != nullptr);
    co_await expect_good(rig.fill());
    Random random(home->random().next());
    for (unsigned round = 0; round < 3; ++round) {
      co_await expect_good(rig.write_some(40));
      co_await cut_power(&rig, &random);
      co_await rig.start();
      REQUIRE(rig.set->running());
      CHECK(rig.whole());
      co_await expect_good(rig.check());
    }
    CHECK(rig.told(SetEvent::Kind::kJournalReplayed) >= 1);
    // Stopped in order it needs no journal to start.
    co_await expect_stopped(&rig);
    rig.options.set.nvram = nullptr;
    co_await rig.start();
    REQUIRE(rig.set->running());
    CHECK(rig.whole());
    co_await expect_good(rig.check());
    co_await rig.kill();
    std::vector<raid::NamedDevice> some = rig.named();
    some.pop_back();
    co_await rig.start(some);
    CHECK_FALSE(rig.set->running());
    CHECK(rig.set->refusal().find("NVRAM") != std::string::npos);
    co_await expect_stopped(&rig);
    co_await rig.start();
    REQUIRE(rig.set->running());
    CHECK(rig.told(SetEvent::Kind::kJournalLost) == 1);
    co_await expect_whole(&rig);
    co_await expect_good(rig.check());
    co_await expect_stopped(&rig);
    const Error closed = co_await (*memory)->close();
    CHECK(closed == Error::kNone);
  });
}

// Writers and readers of their own parts of the set until they are told to stop.
struct Load {
  ControllerRig* rig = nullptr;
  bool stopping = false;
  unsigned running = 0;
  std::string wrong;
  Condition ended;
};

Task<void> load_part(Load* load, Lba first, std::uint64_t blocks, std::uint64_t seed) {
  Random random(seed);
  while (!load->stopping && load->wrong.empty()) {
    const std::uint64_t length = 1 + random.below(120);
    const Lba at = first + random.below(blocks - length);
    std::string wrong = co_await load->rig->write(at, length, random.next());
    if (wrong.empty()) wrong = co_await load->rig->read(at, length);
    if (!wrong.empty()) load->wrong = wrong;
    co_await load->rig->sleep(std::chrono::microseconds(random.below(20000)));
  }
  if (--load->running == 0) load->ended.notify_all();
}

void start_load(Load* load, Random* random) {
  constexpr unsigned kParts = 4;
  const std::uint64_t part = load->rig->set->geometry().block_count / kParts;
  load->stopping = false;
  load->running = kParts;
  for (unsigned i = 0; i < kParts; ++i) spawn(load_part(load, i * part, part, random->next()));
}

Task<void> end_load(Load* load) {
  load->stopping = true;
  while (load->running > 0) co_await load->ended.wait();
  CHECK(load->wrong == "");
}

// One drive at a time goes under load, in one way or another.
Task<void> lose_and_regain(ControllerRig* rig, Random* random) {
  TestDrive& drive = *rig->drives[random->below(6)];
  const bool pulled_orderly = random->chance(0.3);
  if (pulled_orderly) {
    const Controller::Outcome out = co_await rig->controller->remove_drive(drive.description());
    CHECK(out.has_value());
  } else {
    drive.fail_with(Error::kNotReady);
  }
  lose_unflushed(drive, *random);
  co_await rig->sleep(std::chrono::milliseconds(random->below(6000)));
  drive.fail_with(Error::kNone);
  if (!pulled_orderly) co_return;
  const Controller::Outcome in =
      co_await rig->controller->insert_drive(drive.description(), &drive);
  CHECK(in.has_value());
}

// Killed after the first event of a start in which nothing was written yet, with an NVRAM that has
// never seen the set.
TEST_CASE("A set that was stopped in order is so until its journal has begun a life",
          "[raid][managed]") {
  for_worlds(3, [](Executor* home) -> Task<void> {
    ControllerRig rig(*home);
    nvram::SimulatedBoard first_board(std::uint64_t{32} << 20);
    nvram::SimulatedBoard second_board(std::uint64_t{32} << 20);
    nvram::NvramOptions memory_options;
    memory_options.path = "nvram";
    memory_options.boot_id = "boot";
    auto first = co_await nvram::Nvram::open(*home, first_board, memory_options);
    auto second = co_await nvram::Nvram::open(*home, second_board, memory_options);
    REQUIRE((first.has_value() && second.has_value()));
    rig.options.set.nvram = first->get();
    rig.options.set.nvram_journal_bytes = 4 << 20;
    co_await make(&rig, Level::kRaid5, 4);
    co_await expect_good(rig.fill());
    const Uuid uuid = rig.set->uuid();
    co_await expect_stopped(&rig);
    rig.options.set.nvram = second->get();
    const raid::Event stopped = rig.remembered.minimum_events[uuid];
    const auto cut = [](ControllerRig* rig, Executor* home, Uuid uuid,
                        raid::Event before) -> Task<void> {
      while (rig->remembered.minimum_events[uuid] == before) {
        co_await home->sleep_for(std::chrono::microseconds(10));
      }
      for (const auto& drive : rig->drives) drive->fail_with(Error::kNotReady);
    };
    spawn(cut(&rig, home, uuid, stopped));
    co_await rig.start();
    REQUIRE(rig.set != nullptr);
    CHECK_FALSE(rig.set->running());
    co_await rig.kill();
    // Not even all of its drives have to be there.
    std::vector<raid::NamedDevice> some = rig.named();
    some.pop_back();
    co_await rig.start(some);
    REQUIRE(rig.set->running());
    CHECK(rig.told(SetEvent::Kind::kJournalLost) == 0);
    CHECK_FALSE(rig.set->superblock().redundancy_suspect);
    CHECK_FALSE(rig.set->superblock().clean);
    co_await expect_good(rig.check());
    co_await expect_stopped(&rig);
  });
}

TEST_CASE("Drives that come and go under load, with stops and power cuts between",
          "[raid][managed]") {
  for (const Level level : {Level::kRaid5, Level::kRaid6, Level::kRaid10, Level::kRaid50}) {
    CAPTURE(raid::describe(level));
    for_worlds(
        2,
        [](Executor* home, Level level) -> Task<void> {
          ControllerRig rig(*home);
          co_await make(&rig, level, 6);
          Random random(home->random().next());
          for (unsigned round = 0; round < (kSanitized ? 2 : 5); ++round) {
            Load load{.rig = &rig};
            start_load(&load, &random);
            for (unsigned i = 0; i < 3; ++i) {
              co_await lose_and_regain(&rig, &random);
              co_await expect_whole(&rig);
            }
            co_await end_load(&load);
            if (random.chance(0.5)) {
              Request flush;
              flush.operation = Operation::kFlush;
              const Completion flushed = co_await rig.set->submit(std::move(flush));
              CHECK(flushed.error == Error::kNone);
              co_await cut_power(&rig, &random);
            } else {
              co_await expect_stopped(&rig);
            }
            co_await rig.start();
            REQUIRE(rig.set->running());
            co_await expect_whole(&rig);
            co_await expect_good(rig.check());
          }
          CHECK(rig.told(SetEvent::Kind::kSectorsLost) == 0);
          CHECK(rig.told(SetEvent::Kind::kMismatch) == 0);
          co_await expect_stopped(&rig);
        },
        level);
  }
}

TEST_CASE("A rebuild goes on where it was, after a stop and after a power cut", "[raid][managed]") {
  for (const bool cut : {false, true}) {
    for_worlds(
        4,
        [](Executor* home, bool cut) -> Task<void> {
          ControllerRig rig(*home);
          co_await make(&rig, Level::kRaid5, 4);
          co_await expect_good(rig.fill());
          TestDrive& fresh = rig.add("spare");
          fresh.set_latency(3ms);
          Controller::Outcome done = co_await rig.controller->insert_drive("spare", &fresh);
          CHECK(done.has_value());
          done = co_await rig.controller->add_spare("spare", "");
          CHECK(done.has_value());
          done = co_await rig.controller->fail_drive("d2");
          CHECK(done.has_value());
          const std::uint64_t regions = rig.set->drives()->region_count();
          const auto stale = [&rig] { return rig.set->drives()->stale_count(2, false); };
          bool half = false;
          for (unsigned i = 0; i < 100000 && !half; ++i) {
            co_await rig.sleep(1ms);
            half = rig.set->drives()->drive(2) != nullptr && stale() < regions / 2;
          }
          REQUIRE(half);
          REQUIRE(stale() > 0);
          Random random(home->random().next());
          if (cut) {
            co_await cut_power(&rig, &random);
          } else {
            co_await expect_stopped(&rig);
          }
          fresh.counts = {};
          co_await rig.start();
          REQUIRE(rig.set->running());
          CHECK(rig.info("spare").role == 2U);
          co_await expect_whole(&rig);
          CHECK(fresh.counts.writes < (regions / 2 + 2) * 16 + 64);
          CHECK(rig.use("d2") != DriveUse::kMember);
          co_await expect_good(rig.check());
          co_await expect_stopped(&rig);
        },
        cut);
  }
}

TEST_CASE("Records of before a set was stopped in order are not written any more",
          "[raid][managed]") {
  for_worlds(4, [](Executor* home) -> Task<void> {
    nvram::SimulatedBoard board(std::uint64_t{32} << 20);
    nvram::NvramOptions memory_options;
    memory_options.path = "nvram";
    memory_options.boot_id = "boot";
    auto memory = co_await nvram::Nvram::open(*home, board, memory_options);
    REQUIRE(memory.has_value());
    ControllerRig rig(*home);
    rig.options.set.nvram = memory->get();
    rig.options.set.nvram_journal_bytes = 4 << 20;
    co_await make(&rig, Level::kRaid5, 4);
    co_await expect_good(rig.fill());
    co_await expect_good(rig.write_some(40));
    co_await rig.kill();
    rig.options.set.nvram = nullptr;  // One run without it, in which all is written anew.
    co_await rig.start();
    REQUIRE(rig.set->running());
    co_await expect_whole(&rig);
    co_await expect_good(rig.fill());
    co_await expect_stopped(&rig);
    rig.options.set.nvram = memory->get();
    co_await rig.start();
    REQUIRE(rig.set->running());
    CHECK(rig.told(SetEvent::Kind::kJournalReplayed) == 0);
    co_await expect_good(rig.check());
    co_await rig.kill();  // Nor the next time.
    co_await rig.start();
    co_await expect_good(rig.check());
    co_await expect_stopped(&rig);
    const Error closed = co_await (*memory)->close();
    CHECK(closed == Error::kNone);
  });
}

TEST_CASE("With a dead battery a FUA write is on the drives before it is acknowledged",
          "[raid][managed]") {
  for_worlds(6, [](Executor* home) -> Task<void> {
    nvram::SimulatedBoard board(std::uint64_t{32} << 20);
    nvram::NvramOptions memory_options;
    memory_options.path = "nvram";
    memory_options.boot_id = "boot";
    memory_options.battery = nvram::BatteryState::kDead;
    auto memory = co_await nvram::Nvram::open(*home, board, memory_options);
    REQUIRE(memory.has_value());
    ControllerRig rig(*home);
    rig.options.set.nvram = memory->get();
    rig.options.set.nvram_journal_bytes = 4 << 20;
    co_await make(&rig, Level::kRaid5, 4);
    co_await expect_good(rig.fill());
    co_await expect_whole(&rig);
    Random random(home->random().next());
    const std::vector<std::byte> bytes(4096, std::byte{0x5a});
    Request request;
    request.operation = Operation::kWrite;
    request.force_unit_access = true;
    request.extent = {.first = 96, .block_count = 8};
    request.data = co_await home->buffers().allocate(bytes.size());
    request.data.copy_from(bytes);
    const Completion written = co_await rig.set->submit(std::move(request));
    CHECK(written.error == Error::kNone);
    (*memory)->cut_power();
    co_await cut_power(&rig, &random);
    rig.controller.reset();
    rig.set = nullptr;
    memory->reset();
    auto again = co_await nvram::Nvram::open(*home, board, memory_options);
    REQUIRE(again.has_value());
    rig.options.set.nvram = again->get();
    co_await rig.start();
    REQUIRE(rig.set->running());
    Request read;
    read.extent = {.first = 96, .block_count = 8};
    read.data = co_await home->buffers().allocate(bytes.size());
    const Completion done = co_await rig.set->submit(std::move(read));
    std::vector<std::byte> found(bytes.size());
    done.data.copy_to(found);
    CHECK(done.error == Error::kNone);
    CHECK(found == bytes);
    co_await expect_stopped(&rig);
    rig.controller.reset();
    const Error closed = co_await (*again)->close();
    CHECK(closed == Error::kNone);
  });
}

}  // namespace
}  // namespace sandbay::raidtest::managed_set_test
