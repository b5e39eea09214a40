// A disk's schedule: it repeats itself, does not depend on when it is asked, and does with queue,
// caches and background load what a drive does.
#include "model/disk_model.h"

#include <rapidcheck.h>
#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <map>

#include "tests/unit/model/closed_loop.h"
#include "tests/unit/model/profile_files.h"

namespace sandbay::testing {
namespace {

using model::DiskMechanism;
using model::DiskModel;
using model::DiskOptions;
using model::DiskProfile;
using model::DriveCommand;
using model::kSectorBytes;
using std::chrono::microseconds;
using std::chrono::milliseconds;

const DiskProfile& cheetah_profile() {
  static const DiskProfile kProfile = disk_profile("seagate-cheetah-15k5-146");
  return kProfile;
}

std::shared_ptr<const DiskMechanism> mechanism_of(const DiskProfile& profile) {
  return std::make_shared<const DiskMechanism>(profile);
}

const std::shared_ptr<const DiskMechanism>& usual() {
  static const auto kMechanism = mechanism_of(cheetah_profile());
  return kMechanism;
}

std::shared_ptr<const DiskMechanism> with_write_cache(std::uint64_t bytes) {
  DiskProfile profile = cheetah_profile();
  profile.write_cache = true;
  profile.cache_bytes = bytes;
  return mechanism_of(profile);
}

constexpr std::uint64_t kUsualCache = 16 << 20;
constexpr std::uint64_t kSmallCache = 128 << 10;  // Less than the largest of the writes drawn.

// What happens when: a list of commands in order of arrival.
std::vector<DriveCommand> draw_commands(std::uint64_t seed, std::uint64_t sectors) {
  Random random(seed);
  std::vector<DriveCommand> commands(60);
  TimePoint arrival = kLoopStart;
  std::uint64_t stream = random.below(sectors / 2);
  for (DriveCommand& command : commands) {
    arrival += microseconds(random.below(random.chance(0.1) ? 40'000 : 900));
    // So long that a background load begins anew.
    if (random.chance(0.02)) arrival += milliseconds(1500);
    command.arrival = arrival;
    const std::uint64_t kind = random.below(10);
    if (kind == 0) {
      command.operation = Operation::kFlush;
      continue;
    }
    command.operation = kind < 7 ? Operation::kRead : Operation::kWrite;
    command.force_unit_access = random.chance(0.1);
    command.sector_count = 1 + random.below(300);
    if (random.chance(0.5)) {
      command.sector = stream;
      stream += command.sector_count;
    } else {
      command.sector = random.below(sectors - 300);
    }
  }
  return commands;
}

// The ends, asked for at the model's own events and at `extra` random times between.
std::vector<TimePoint> play(DiskModel& drive, std::vector<DriveCommand>& commands,
                            std::uint64_t extra, std::uint64_t seed) {
  Random random(seed);
  TimePoint now = kLoopStart;
  const auto collect = [&] {
    drive.advance(now);
    while (DriveCommand* const ended = drive.take_ended(now)) {
      RC_ASSERT(ended->end <= now);
      // Told in time: what the last piece takes over the interface is all that it may be late.
      if (extra == 0) RC_ASSERT(now - ended->end < microseconds(14));
    }
  };
  const auto run_to = [&](TimePoint limit) {
    while (true) {
      TimePoint next = std::min(drive.next_event(), limit);
      if (extra > 0 && random.below(extra + 1) != 0 && next > now) {
        const auto gap = std::min<std::int64_t>((next - now).count(), 3'000'000);
        next = now + Duration(random.below(static_cast<std::uint64_t>(gap) + 1));
      }
      // Who is not asked for anything extra is not even asked when somebody arrives.
      if (extra == 0 && drive.next_event() > limit) break;
      const bool last = next == limit;
      now = std::max(now, next);
      collect();
      if (last) break;
    }
  };
  for (DriveCommand& command : commands) {
    run_to(command.arrival);
    drive.arrive(command);
  }
  while (drive.outstanding() > 0) {
    now = std::max(now, drive.next_event());
    collect();
  }
  std::vector<TimePoint> ends;
  for (const DriveCommand& command : commands) ends.push_back(command.end);
  return ends;
}

DriveCommand single(DiskModel& drive, DriveCommand command) {
  command.stage = DriveCommand::Stage::kNone;
  drive.arrive(command);
  TimePoint now = command.arrival;
  while (drive.outstanding() > 0) {
    now = std::max(now, drive.next_event());
    drive.advance(now);
    static_cast<void>(drive.take_ended(now));
  }
  return command;
}

}  // namespace

TEST_CASE("a schedule does not depend on when it is asked", "[model][disk]") {
  const std::array mechanisms = {usual(), with_write_cache(kUsualCache),
                                 with_write_cache(kSmallCache)};
  REQUIRE(rc::check("asked seldom or often", [&mechanisms](std::uint64_t seed, bool load) {
    const auto& mechanism = mechanisms[*rc::gen::inRange<std::size_t>(0, mechanisms.size())];
    DiskOptions options{.seed = seed};
    if (load) options.background = {.commands_per_second = 90, .read_share = 0.6};
    std::vector<std::vector<TimePoint>> ends;
    for (const std::uint64_t extra : {0U, 1U, 4U}) {
      DiskModel drive(mechanism, options);
      std::vector<DriveCommand> commands = draw_commands(seed, drive.sector_count());
      ends.push_back(play(drive, commands, extra, seed + extra));
      for (const DriveCommand& command : commands) RC_ASSERT(command.end >= command.arrival);
    }
    RC_ASSERT(ends[0] == ends[1]);
    RC_ASSERT(ends[0] == ends[2]);
  }));
}

TEST_CASE("the same seed gives the same ends, another seed others", "[model][disk]") {
  const auto ends = [](std::uint64_t seed) {
    DiskModel drive(usual(), {.seed = seed, .background = {.commands_per_second = 50}});
    RandomPlaces places(11, Operation::kRead, 8192, drive.sector_count());
    return run_loop(drive, 16, 3000, places).ends;
  };
  CHECK(ends(3) == ends(3));
  CHECK(ends(3) != ends(4));
}

TEST_CASE("a command more never makes the drive idle longer", "[model][disk]") {
  double rate = 0;
  double latency = 0;
  for (std::uint64_t depth = 1; depth <= 48; depth = depth * 3 / 2 + 1) {
    DiskModel drive(usual(), {});
    RandomPlaces places(2, Operation::kWrite, 8192, drive.sector_count());
    const LoopResult result = run_loop(drive, depth, 4000, places);
    INFO(depth);
    CHECK(result.per_second() > rate * 0.995);
    CHECK(result.mean_latency > latency);
    // Little's law.
    CHECK(result.per_second() * result.mean_latency ==
          Approx(static_cast<double>(depth)).epsilon(0.02));
    rate = result.per_second();
    latency = result.mean_latency;
  }
}

TEST_CASE("first come, first served keeps the order of arrival", "[model][disk]") {
  DiskProfile profile = cheetah_profile();
  profile.order = model::QueueOrder::kArrival;
  profile.look_ahead = false;
  const auto mechanism = mechanism_of(profile);
  REQUIRE(rc::check("order", [&mechanism](std::uint64_t seed) {
    DiskModel drive(mechanism, {.seed = seed});
    std::vector<DriveCommand> commands = draw_commands(seed, drive.sector_count());
    std::erase_if(commands, [](const DriveCommand& command) {
      return command.operation == Operation::kFlush;
    });
    const std::vector<TimePoint> ends = play(drive, commands, 0, seed);
    RC_ASSERT(std::ranges::is_sorted(ends));
  }));
}

TEST_CASE("the age bound bounds how long a far command waits", "[model][disk]") {
  // All but the first command are near one another; new ones keep coming.
  const auto longest = [](Duration bound) {
    DiskProfile profile = cheetah_profile();
    profile.age_bound = bound;
    profile.look_ahead = false;
    DiskModel drive(mechanism_of(profile), {});
    Random random(1);
    const std::uint64_t last = drive.sector_count() - 8;
    return run_loop(drive, 12, 4000,
                    [&](std::uint64_t index) {
                      const std::uint64_t near = random.below(2'000'000) / 8 * 8;
                      return DriveCommand{.operation = Operation::kRead,
                                          .sector = index % 500 == 11 ? last : near,
                                          .sector_count = 8};
                    })
        .longest;
  };
  const double bounded = longest(milliseconds(60));
  const double unbounded = longest(milliseconds(100'000));
  CHECK(bounded < 0.110);
  CHECK(unbounded > 0.5);
}

TEST_CASE("another head of the same cylinder takes a head switch", "[model][disk]") {
  // Where a track ends, the next one begins a head switch later: it can just be reached. A little
  // before that it cannot, and the sector comes a revolution later.
  const auto& layout = usual()->layout;
  const std::uint64_t track = layout.zones().front().sectors_per_track;
  const auto gap_to = [&](std::uint64_t second) {
    DiskModel drive(usual(), {});
    std::vector<DriveCommand> both = {
        {.operation = Operation::kWrite, .sector = track - 8, .sector_count = 8},
        {.operation = Operation::kWrite, .sector = second, .sector_count = 8}};
    for (DriveCommand& command : both) command.arrival = kLoopStart;
    // The second is ready a little later, so that it is not the first to be chosen.
    both[1].arrival += microseconds(1);
    const std::vector<TimePoint> ends = play(drive, both, 0, 1);
    return ends[1] - ends[0];
  };
  const Duration eight(layout.place(track + 8).sweep - layout.place(track).sweep);
  CHECK(gap_to(track) == cheetah_profile().head_switch + eight);
  const std::uint64_t before = 2 * track - 8;  // The end of the next track is just before.
  const Duration to_it(layout.place(before).sweep - layout.place(track - 8).sweep);
  CHECK(gap_to(before) == to_it);
  CHECK(to_it > milliseconds(4));
}

TEST_CASE("rotation is a pure function of time", "[model][disk]") {
  // The same sector again, written: it always ends at the same angle.
  DiskModel drive(usual(), {.seed = 9});
  const DriveCommand write{.operation = Operation::kWrite, .sector = 4'000'000, .sector_count = 16};
  const LoopResult result =
      run_loop(drive, 1, 50, [&](std::uint64_t) { return write; }, microseconds(777));
  for (std::size_t i = 1; i < result.ends.size(); ++i) {
    CHECK((result.ends[i] - result.ends[i - 1]).count() % 4'000'000 == 0);
  }
}

TEST_CASE("small sequential writes one at a time lose a revolution each", "[model][disk]") {
  // The paper on the GigaStor has 60 MB/s for reads and 40.75 for writes of this drive.
  const DiskProfile maxtor = disk_profile("maxtor-7l250s0");
  const auto mechanism = mechanism_of(maxtor);
  DiskModel one(mechanism, {});
  const Sequence sequence(Operation::kWrite, 1 << 20, 0);
  const double alone = run_loop(one, 1, 300, sequence).megabytes();
  DiskModel two(mechanism, {});
  const double queued = run_loop(two, 2, 300, sequence).megabytes();
  DiskModel reader(mechanism, {});
  const double read = run_loop(reader, 1, 300, Sequence(Operation::kRead, 1 << 20, 0)).megabytes();
  std::printf("%s: 1 MiB writes %.1f MB/s, queued %.1f, reads %.1f\n", "maxtor-7l250s0", alone,
              queued, read);
  CHECK(queued == Approx(65).epsilon(0.02));
  CHECK(read == Approx(65).epsilon(0.02));
  const double revolution = 60.0 / 7200;
  CHECK(alone == Approx((1 << 20) / 1e6 / ((1 << 20) / 65e6 + revolution)).epsilon(0.03));
}

TEST_CASE("look-ahead carries a sequential reader over its pauses", "[model][disk]") {
  const Sequence sequence(Operation::kRead, 64 << 10, 1'000'000);
  DiskModel ahead(usual(), {});
  const LoopResult with = run_loop(ahead, 1, 2000, sequence, microseconds(100));
  DiskProfile profile = cheetah_profile();
  profile.look_ahead = false;
  DiskModel plain(mechanism_of(profile), {});
  const LoopResult without = run_loop(plain, 1, 2000, sequence, microseconds(100));
  CHECK(with.megabytes() > 115);
  CHECK(without.megabytes() < 20);
  CHECK(plain.counters().cache_hits == 0);

  // A reader slower than the medium is served from the cache, within overhead and interface.
  DiskModel slow(usual(), {});
  const LoopResult relaxed = run_loop(slow, 1, 500, sequence, milliseconds(3));
  CHECK(slow.counters().cache_hits > 490);
  CHECK(relaxed.mean_latency < 0.0006);
}

TEST_CASE("segments tell as many streams apart as there are", "[model][disk]") {
  const auto hits = [](std::uint64_t streams) {
    DiskModel drive(usual(), {});
    const std::uint64_t apart = drive.sector_count() / streams;
    // Two readers of each place: the second one finds what the first has left in a segment.
    static_cast<void>(run_loop(
        drive, 1, streams * 20,
        [&](std::uint64_t index) {
          const std::uint64_t round = index / streams;
          return DriveCommand{.operation = Operation::kRead,
                              .sector = index % streams * apart + round / 2 * 16,
                              .sector_count = 16};
        },
        microseconds(50)));
    return static_cast<double>(drive.counters().cache_hits) / static_cast<double>(streams * 20);
  };
  CHECK(hits(32) > 0.45);
  CHECK(hits(64) < 0.05);
}

TEST_CASE("a write takes what was read ahead of it away", "[model][disk]") {
  DiskModel drive(usual(), {});
  DriveCommand read{
      .operation = Operation::kRead, .sector = 5000, .sector_count = 8, .arrival = kLoopStart};
  // Soon, while the segment has room for all of it.
  const DriveCommand first = single(drive, read);
  read.arrival = first.end + microseconds(300);
  const DriveCommand again = single(drive, read);
  CHECK(again.end - again.arrival < microseconds(260));
  DriveCommand write = read;
  write.operation = Operation::kWrite;
  write.arrival = again.end + microseconds(300);
  const DriveCommand written = single(drive, write);
  CHECK(written.end - written.arrival > microseconds(260));
  read.arrival = written.end + microseconds(300);
  static_cast<void>(single(drive, read));
  CHECK(drive.counters().cache_hits == 1);
  // FUA goes to the medium.
  read.force_unit_access = true;
  read.arrival += milliseconds(50);
  static_cast<void>(single(drive, read));
  CHECK(drive.counters().cache_hits == 1);
}

TEST_CASE("the write cache takes writes until it is full; a flush waits for all", "[model][disk]") {
  const auto mechanism = with_write_cache(kUsualCache);
  DiskModel drive(mechanism, {});
  RandomPlaces places(5, Operation::kWrite, 8192, drive.sector_count());
  // Some that it can hold.
  DriveCommand command = places(0);
  command.arrival = kLoopStart;
  TimePoint now = kLoopStart;
  for (int i = 0; i < 200; ++i) {
    const DriveCommand done = single(drive, command);
    CHECK(done.end - done.arrival < microseconds(260));
    now = done.end;
    command = places(0);
    command.arrival = now;
  }
  const DriveCommand flush = single(drive, {.operation = Operation::kFlush, .arrival = now});
  // 200 writes, in the best order: 2 ms each at most.
  CHECK(flush.end - flush.arrival > milliseconds(200));
  CHECK(flush.end - flush.arrival < milliseconds(500));
  const DriveCommand empty = single(drive, {.operation = Operation::kFlush, .arrival = flush.end});
  CHECK(empty.end - empty.arrival == cheetah_profile().read_overhead);

  // More than it holds: the rate is that of the medium with a deep queue.
  DiskModel full(mechanism, {});
  const double rate = run_loop(full, 32, 8000, places).per_second();
  CHECK(rate > 350);
  CHECK(rate < 900);

  // A read of what has not been written yet comes from the cache, FUA writes do not go there.
  DiskModel reading(mechanism, {});
  DriveCommand write{
      .operation = Operation::kWrite, .sector = 9000, .sector_count = 64, .arrival = kLoopStart};
  const DriveCommand cached = single(reading, write);
  const DriveCommand read = single(
      reading,
      {.operation = Operation::kRead, .sector = 9008, .sector_count = 8, .arrival = cached.end});
  CHECK(read.end - read.arrival < microseconds(260));
  write.force_unit_access = true;
  write.arrival = read.end;
  const DriveCommand through = single(reading, write);
  CHECK(through.end - through.arrival > milliseconds(1));
}

TEST_CASE("background load takes its share, whatever was before", "[model][disk]") {
  const auto rate = [](double background, TimePoint start) {
    DiskModel drive(usual(), {.seed = 2, .background = {.commands_per_second = background}});
    RandomPlaces places(6, Operation::kRead, 8192, drive.sector_count());
    const LoopResult result = run_loop(drive, 1, 3000, places, {}, start);
    const double drawn = static_cast<double>(drive.counters().background);
    CHECK(drawn == Approx(background * result.seconds).epsilon(0.06).margin(background * 1.1));
    return result.per_second();
  };
  const double alone = rate(0, kLoopStart);
  const double forty = rate(40, kLoopStart);
  const double eighty = rate(80, kLoopStart);
  CHECK(forty < alone * 0.85);
  CHECK(eighty < forty * 0.85);
  CHECK(eighty > alone * 0.35);
  // A year later, after nothing: nobody computes the year.
  CHECK(rate(40, kLoopStart + std::chrono::hours(9000)) == Approx(forty).epsilon(0.05));
  // More than the drive can do: what it cannot is dropped, the host still gets its turn.
  DiskModel drowned(usual(), {.seed = 2, .background = {.commands_per_second = 5000}});
  RandomPlaces places(6, Operation::kRead, 8192, drowned.sector_count());
  CHECK(run_loop(drowned, 1, 100, places).per_second() > 1);
}

TEST_CASE("a command may be withdrawn at any stage", "[model][disk]") {
  const std::array mechanisms = {usual(), with_write_cache(kUsualCache),
                                 with_write_cache(kSmallCache)};
  REQUIRE(rc::check("withdrawn", [&mechanisms](std::uint64_t seed) {
    const auto& mechanism = mechanisms[*rc::gen::inRange<std::size_t>(0, mechanisms.size())];
    DiskModel drive(mechanism, {.seed = seed});
    Random random(seed);
    std::vector<DriveCommand> commands = draw_commands(seed, drive.sector_count());
    std::vector<DriveCommand*> out;
    TimePoint now = kLoopStart;
    const auto collect = [&] {
      drive.advance(now);
      while (DriveCommand* const ended = drive.take_ended(now)) {
        RC_ASSERT(std::erase(out, ended) == 1);
      }
    };
    for (DriveCommand& command : commands) {
      now = std::max(now, command.arrival);
      collect();
      drive.arrive(command);
      out.push_back(&command);
      if (!random.chance(0.4)) continue;
      DriveCommand* const victim = out[random.below(out.size())];
      std::erase(out, victim);
      drive.withdraw(*victim);
      victim->sector = ~std::uint64_t{0};  // Nobody may look at it any more.
    }
    while (drive.outstanding() > 0) {
      RC_ASSERT(drive.next_event() != kNever);
      now = std::max(now, drive.next_event());
      collect();
    }
    RC_ASSERT(out.empty());
    RC_ASSERT(drive.next_event() == kNever);
  }));
}

TEST_CASE("empty and data-less commands cost their overhead", "[model][disk]") {
  DiskModel drive(usual(), {});
  for (const Operation operation :
       {Operation::kFlush, Operation::kUnmap, Operation::kAdvise, Operation::kRead}) {
    const DriveCommand done = single(drive, {.operation = operation, .arrival = kLoopStart});
    CHECK(done.end - done.arrival == cheetah_profile().read_overhead);
  }
  // A whole drive of zeros: as long as writing it, computed at once.
  const DriveCommand zeros = single(drive, {.operation = Operation::kWriteZeroes,
                                            .sector = 0,
                                            .sector_count = drive.sector_count(),
                                            .arrival = kLoopStart});
  const double seconds = static_cast<double>((zeros.end - zeros.arrival).count()) / 1e9;
  CHECK(seconds == Approx(286749488.0 * 512 / 97e6).epsilon(0.05));
}

}  // namespace sandbay::testing
