// A new volume on a set that is not blank: nothing of before is ever read, and what was written
// stays, also after a crash at any moment; with drives that free space and with drives that do not.
#include "group/clearing.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <deque>
#include <map>

#include "runtime/simulation.h"

namespace sandbay::group {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kBlockBytes = 512;
constexpr std::uint32_t kJunk = 0xdeadbeef;
constexpr std::uint64_t kChunk = (std::uint64_t{1} << 20) / kBlockBytes;
constexpr Lba kFirst = 1000;  // Where the volume lies.
constexpr std::uint64_t kBlocks = 16 * kChunk + 3000;
constexpr std::uint64_t kSetBlocks = kFirst + kBlocks + 500;
constexpr std::uint64_t kMostAtOnce = 2048;

// The record as the metadata have it, by what follows the volume's key.
using Entries = std::map<std::string, std::string>;

void change(Entries& entries, const ClearedAreas::Record& record) {
  if (record.ended) entries.clear();
  for (const auto& [key, value] : record.changes) {
    if (value) {
      entries[key] = *value;
    } else {
      std::erase_if(entries, [&](const auto& entry) { return entry.first.starts_with(key); });
    }
  }
}

ClearedAreas decode(const Entries& entries, std::uint32_t block_bytes = kBlockBytes) {
  const std::vector<std::pair<std::string, std::string>> list(entries.begin(), entries.end());
  auto decoded = ClearedAreas::decode(list, block_bytes);
  REQUIRE(decoded.has_value());
  return std::move(*decoded);
}

Entries entries_of(const ClearedAreas& areas) {
  Entries entries;
  change(entries, areas.whole_record());
  return entries;
}

std::shared_ptr<ClearingLane> lane() { return std::make_shared<ClearingLane>(); }

// What a set holds, a number for each block.
struct Content {
  struct Change {
    Extent extent;
    std::vector<std::uint32_t> numbers;  // Empty: zeros.
  };
  std::vector<std::uint32_t> durable = std::vector<std::uint32_t>(kSetBlocks, kJunk);
  std::deque<Change> unflushed;

  static void apply(std::vector<std::uint32_t>& to, const Change& change) {
    for (std::uint64_t i = 0; i < change.extent.block_count; ++i) {
      to[change.extent.first + i] = change.numbers.empty() ? 0 : change.numbers[i];
    }
  }
};

class FakeSet final : public BlockDevice {
 public:
  FakeSet(Executor& home, Content content, bool unmap)
      : home_(home), content_(std::move(content)), visible_(content_.durable) {
    geometry_.block_count = kSetBlocks;
    geometry_.unmap = unmap;
    geometry_.unmap_zeroes = unmap;
    for (const Content::Change& change : content_.unflushed) Content::apply(visible_, change);
  }

  Executor& home() const noexcept override { return home_; }
  const Geometry& geometry() const noexcept override { return geometry_; }
  Health health() const noexcept override { return Health::kGood; }
  std::string description() const override { return "fake"; }
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override {
    co_return ProvisioningRun{.block_count = limit - first, .mapped = true};
  }

  Task<Completion> submit(Request request) override {
    co_await home_.sleep_for(std::chrono::microseconds(home_.random().below(200)));
    Completion completion;
    completion.data = std::move(request.data);
    const Extent extent = request.extent;
    if (request.operation == Operation::kRead) {
      std::vector<std::byte> bytes(extent.byte_count(kBlockBytes));
      for (std::uint64_t i = 0; i < extent.block_count; ++i) {
        std::memcpy(&bytes[i * kBlockBytes], &visible_[extent.first + i], 4);
      }
      completion.data.copy_from(bytes);
      co_return completion;
    }
    if (before_change) before_change();
    if (on_change) co_await on_change(&request);
    if (std::exchange(fail_next, false)) {
      completion.error = Error::kHardware;
      co_return completion;
    }
    if (request.operation == Operation::kUnmap && refuse_unmap) {
      completion.error = Error::kUnsupported;
    } else if (request.operation == Operation::kFlush) {
      ++flushes;
      for (const Content::Change& change : content_.unflushed) {
        Content::apply(content_.durable, change);
      }
      content_.unflushed.clear();
    } else {
      Content::Change change{.extent = extent, .numbers = {}};
      if (request.operation == Operation::kWrite) {
        change.numbers.resize(extent.block_count);
        for (std::uint64_t i = 0; i < extent.block_count; ++i) {
          completion.data.copy_to(std::as_writable_bytes(std::span(change.numbers).subspan(i, 1)),
                                  i * kBlockBytes);
        }
      }
      cleared += request.operation == Operation::kWrite ? 0 : extent.block_count;
      Content::apply(visible_, change);
      content_.unflushed.push_back(std::move(change));
    }
    co_return completion;
  }

  const Content& content() const { return content_; }
  std::function<void()> before_change;
  std::function<Task<void>(const Request*)> on_change;
  bool refuse_unmap = false;
  std::uint64_t cleared = 0;
  unsigned flushes = 0;
  bool fail_next = false;

 private:
  Executor& home_;
  Content content_;
  std::vector<std::uint32_t> visible_;
  Geometry geometry_;
};

// What is there when the power goes, and what a host knows.
struct Cut {
  Content content;
  Entries record;
  std::vector<std::uint32_t> acknowledged;
  Extent in_flight;
  std::uint32_t in_flight_number = 0;
};

struct Rig {
  Executor& home;
  bool unmap;
  FakeSet set;
  Entries record;  // In the metadata.
  Clearing clearing;
  unsigned commits = 0;
  std::vector<std::uint32_t> acknowledged = std::vector<std::uint32_t>(kBlocks);
  Extent in_flight{};
  std::uint32_t in_flight_number = 0;
  std::vector<Cut> cuts;
  std::uint64_t changes = 0;
  std::uint64_t next_cut = 0;
  bool failing = false;

  Rig(Executor& executor, Content content, bool unmaps, ClearedAreas areas)
      : home(executor),
        unmap(unmaps),
        set(executor, std::move(content), unmaps),
        record(entries_of(areas)),
        clearing(
            set, std::move(areas),
            [this](ClearedAreas::Record kept) { return keep(this, std::move(kept)); }, lane()) {}

  static Task<Error> keep(Rig* rig, ClearedAreas::Record kept) {
    if (rig->failing) co_return Error::kHardware;
    ++rig->commits;
    rig->perhaps_cut();
    co_await rig->home.sleep_for(100us);
    change(rig->record, kept);
    rig->perhaps_cut();
    co_return Error::kNone;
  }
  void perhaps_cut() {
    if (changes++ < next_cut || cuts.size() == 12) return;
    next_cut += 1 + home.random().below(12);
    cuts.push_back({set.content(), record, acknowledged, in_flight, in_flight_number});
  }
};

Task<Completion> ask(Rig* rig, Operation operation, Lba first, std::uint64_t blocks,
                     std::uint32_t number = 0) {
  Request request;
  request.operation = operation;
  request.extent = {.first = kFirst + first, .block_count = blocks};
  if (operation == Operation::kRead || operation == Operation::kWrite) {
    request.data = co_await rig->home.buffers().allocate(blocks * kBlockBytes);
    std::vector<std::byte> bytes(blocks * kBlockBytes);
    for (std::uint64_t i = 0; i < blocks; ++i) std::memcpy(&bytes[i * kBlockBytes], &number, 4);
    request.data.copy_from(bytes);
  }
  Completion done = co_await rig->clearing.submit(std::move(request));
  co_return done;
}

// What does not read as it should, in blocks; `cut`: what was under way may be old or new.
Task<std::uint64_t> wrong_blocks(Rig* rig, const std::vector<std::uint32_t>* expected,
                                 const Cut* cut) {
  std::uint64_t wrong = 0;
  for (Lba at = 0; at < kBlocks; at += kMostAtOnce) {
    const std::uint64_t count = std::min(kMostAtOnce, kBlocks - at);
    const Completion done = co_await ask(rig, Operation::kRead, at, count);
    CHECK(done.error == Error::kNone);
    std::vector<std::byte> bytes(count * kBlockBytes);
    done.data.copy_to(bytes);
    for (std::uint64_t i = 0; i < count; ++i) {
      std::uint32_t number = 0;
      std::memcpy(&number, &bytes[i * kBlockBytes], 4);
      const bool flying = cut != nullptr && at + i >= cut->in_flight.first &&
                          at + i < cut->in_flight.end() && number == cut->in_flight_number;
      wrong += number != (*expected)[at + i] && !flying;
    }
  }
  co_return wrong;
}

// One host that writes, frees and reads, and takes for kept what it has flushed.
Task<void> use(Rig* rig, unsigned operations) {
  Random& random = rig->home.random();
  for (unsigned i = 0; i < operations; ++i) {
    const std::uint64_t blocks = 1 + random.below(i % 5 == 0 ? kMostAtOnce : 40);
    const Lba first = random.below(kBlocks - blocks);
    const bool frees = random.below(4) == 0;
    rig->failing = random.below(5) == 0;
    rig->in_flight = {.first = first, .block_count = blocks};
    rig->in_flight_number = frees ? 0 : i + 1;
    Completion done = co_await ask(rig, frees ? Operation::kUnmap : Operation::kWrite, first,
                                   blocks, rig->in_flight_number);
    rig->failing = false;
    if (done.error != Error::kNone) {
      CHECK((done.error == Error::kHardware || (frees && done.error == Error::kUnsupported)));
      done = co_await ask(rig, Operation::kWrite, first, blocks, rig->in_flight_number);
    }
    CHECK(done.error == Error::kNone);
    done = co_await ask(rig, Operation::kFlush, 0, 0);
    CHECK(done.error == Error::kNone);
    std::fill_n(rig->acknowledged.begin() + static_cast<std::ptrdiff_t>(first), blocks,
                rig->in_flight_number);
    rig->in_flight = {};
  }
}

ClearedAreas everything_old() {
  ClearedAreas areas;
  areas.add({.first = kFirst, .block_count = kBlocks}, kBlockBytes);
  return areas;
}

Task<void> end(Rig* rig) {
  while (!rig->record.empty()) co_await rig->home.sleep_for(1s);
  const bool stopped = co_await rig->clearing.stop(kNever);
  CHECK(stopped);
  CHECK(rig->clearing.left_blocks() == 0);
}

// Of what was not flushed any part is there, in order.
Task<void> after_a_cut(Executor* home, const Cut* cut, bool unmap) {
  Content content = cut->content;
  for (const Content::Change& change : std::exchange(content.unflushed, {})) {
    if (home->random().below(2) == 0) Content::apply(content.durable, change);
  }
  Rig rig(*home, std::move(content), unmap, decode(cut->record));
  std::uint64_t wrong = co_await wrong_blocks(&rig, &cut->acknowledged, cut);
  CHECK(wrong == 0);
  rig.clearing.start();
  co_await end(&rig);
  wrong = co_await wrong_blocks(&rig, &cut->acknowledged, cut);
  CHECK(wrong == 0);
}

Task<void> live(Executor* home, bool unmap) {
  Rig rig(*home, Content{}, unmap, everything_old());
  rig.set.refuse_unmap = unmap && home->random().below(2) == 0;
  rig.set.before_change = [&rig] { rig.perhaps_cut(); };
  std::uint64_t wrong = co_await wrong_blocks(&rig, &rig.acknowledged, nullptr);
  CHECK(wrong == 0);
  co_await use(&rig, 6);
  rig.clearing.start();
  co_await use(&rig, 30);
  co_await end(&rig);
  wrong = co_await wrong_blocks(&rig, &rig.acknowledged, nullptr);
  CHECK(wrong == 0);
  CHECK(rig.cuts.size() == 12);
  for (Lba lba = 0; lba < kSetBlocks; ++lba) {  // Not a block of anybody else's.
    const bool others = lba < kFirst || lba >= kFirst + kBlocks;
    if (others && rig.set.content().durable[lba] != kJunk) ++wrong;
  }
  CHECK(wrong == 0);
  for (const Cut& cut : rig.cuts) co_await after_a_cut(home, &cut, unmap);
}

Task<void> grow(Executor* home) {
  ClearedAreas half;
  half.add({.first = kFirst, .block_count = 2 * kChunk + 17}, kBlockBytes);
  Rig rig(*home, Content{}, false, std::move(half));
  Completion done = co_await ask(&rig, Operation::kWrite, 5, 10, 7);
  CHECK(done.error == Error::kNone);
  const Extent added{.first = kFirst + 2 * kChunk + 17, .block_count = kBlocks - 2 * kChunk - 17};
  Error error = co_await rig.clearing.grow(
      added, [](ClearedAreas::Record) -> Task<Error> { co_return Error::kHardware; });
  CHECK(error == Error::kHardware);
  CHECK(rig.clearing.left_blocks() == kChunk + 17);
  error = co_await rig.clearing.grow(
      added, [&rig](ClearedAreas::Record record) { return Rig::keep(&rig, std::move(record)); });
  CHECK(error == Error::kNone);
  CHECK(rig.clearing.left_blocks() == kChunk + 17 + added.block_count);
  std::fill_n(rig.acknowledged.begin() + 5, 10, 7);
  std::uint64_t wrong = co_await wrong_blocks(&rig, &rig.acknowledged, nullptr);
  CHECK(wrong == 0);
  co_await end(&rig);
  wrong = co_await wrong_blocks(&rig, &rig.acknowledged, nullptr);
  CHECK(wrong == 0);
}

// A write waits for its own chunk and for no other; reads and freeing cost the set nothing.
Task<void> costs_one_chunk(Executor* home) {
  Rig rig(*home, Content{}, true, everything_old());
  Completion done = co_await ask(&rig, Operation::kUnmap, 0, kBlocks);
  CHECK(done.error == Error::kNone);
  CHECK(rig.set.cleared == 0);
  const auto mapped = co_await rig.clearing.provisioning(kFirst, kFirst + kBlocks);
  REQUIRE(mapped.has_value());
  CHECK_FALSE(mapped->mapped);
  CHECK(mapped->block_count == kBlocks);
  done = co_await ask(&rig, Operation::kWrite, kChunk + 5, 8, 3);
  CHECK(done.error == Error::kNone);
  CHECK(rig.set.cleared == kChunk);
  CHECK(rig.clearing.left_blocks() == kBlocks - kChunk);
  const auto other = co_await rig.clearing.provisioning(kFirst + kChunk, kFirst + kBlocks);
  REQUIRE(other.has_value());
  CHECK(other->mapped);
  CHECK(other->block_count == kChunk);
}

// However many first writes come at once, they share a flush and a commit.
Task<void> write_one(Rig* rig, Lba first, std::uint32_t number, unsigned* left) {
  const Completion done = co_await ask(rig, Operation::kWrite, first, 8, number);
  CHECK(done.error == Error::kNone);
  --*left;
}

Task<void> share_turns(Executor* home) {
  Rig rig(*home, Content{}, false, everything_old());
  unsigned left = 64;
  for (std::uint32_t i = 0; i < 64; ++i) {
    const Lba first = (i % 16) * kChunk + (i / 16) * 8;
    std::fill_n(rig.acknowledged.begin() + static_cast<std::ptrdiff_t>(first), 8, i + 1);
    spawn(write_one(&rig, first, i + 1, &left));
  }
  while (left > 0) co_await home->sleep_for(1ms);
  CHECK(rig.set.cleared == 16 * kChunk);  // Each chunk once.
  CHECK(rig.commits <= 4);
  CHECK(rig.set.flushes <= 4);
  const std::uint64_t wrong = co_await wrong_blocks(&rig, &rig.acknowledged, nullptr);
  CHECK(wrong == 0);
}

Task<void> hold_zeros(Executor* home, const Request* request, Lba held, const bool* holding) {
  while (request->operation == Operation::kWriteZeroes && request->extent.first == held &&
         *holding) {
    co_await home->sleep_for(1ms);
  }
}

// The set holds what the background clears; writes elsewhere go through, and one there ends when
// its time has come, or it is cancelled, or the volume goes; then nothing of it is ever written.
Task<void> nobody_waits_long(Executor* home) {
  Rig rig(*home, Content{}, false, everything_old());
  bool holding = true;
  rig.set.on_change = [&](const Request* request) {
    return hold_zeros(home, request, kFirst, &holding);
  };
  rig.clearing.start();
  co_await home->sleep_for(10ms);
  Completion done = co_await ask(&rig, Operation::kWrite, 2 * kChunk, 8, 1);
  CHECK(done.error == Error::kNone);
  std::fill_n(rig.acknowledged.begin() + 2 * kChunk, 8, 1);

  Request late;
  late.operation = Operation::kWrite;
  late.extent = {.first = kFirst + 8, .block_count = 8};
  late.data = co_await home->buffers().allocate(8 * kBlockBytes);
  late.deadline = home->now() + 1s;
  done = co_await rig.clearing.submit(std::move(late));
  CHECK(done.error == Error::kTimedOut);
  CHECK(done.data.byte_count() == 8 * kBlockBytes);

  Cancellation cancellation;
  Request given_up;
  given_up.operation = Operation::kWrite;
  given_up.extent = {.first = kFirst + 8, .block_count = 8};
  given_up.data = std::move(done.data);
  given_up.cancellation = &cancellation;
  std::optional<Completion> ended;
  const auto carry = [](Rig* r, Request q, std::optional<Completion>* to) -> Task<void> {
    *to = co_await r->clearing.submit(std::move(q));
  };
  spawn(carry(&rig, std::move(given_up), &ended));
  co_await home->sleep_for(1s);
  CHECK_FALSE(ended.has_value());
  cancellation.cancel();
  co_await home->sleep_for(1ms);
  REQUIRE(ended.has_value());
  CHECK(ended->error == Error::kCancelled);

  ended.reset();
  Request of_gone;
  of_gone.operation = Operation::kWrite;
  of_gone.extent = {.first = kFirst + 8, .block_count = 8};
  of_gone.data = co_await home->buffers().allocate(8 * kBlockBytes);
  spawn(carry(&rig, std::move(of_gone), &ended));
  co_await home->sleep_for(1ms);
  rig.clearing.refuse_changes();
  co_await home->sleep_for(1ms);
  REQUIRE(ended.has_value());
  CHECK(ended->error == Error::kClosed);
  done = co_await ask(&rig, Operation::kUnmap, 2 * kChunk, 8);
  CHECK(done.error == Error::kClosed);
  rig.clearing.refuse_all();
  bool stopped = co_await rig.clearing.stop(home->now() + 1s);
  CHECK_FALSE(stopped);
  holding = false;
  stopped = co_await rig.clearing.stop(kNever);
  CHECK(stopped);
  const unsigned commits = rig.commits;
  co_await home->sleep_for(60s);
  CHECK(rig.commits == commits);
  CHECK(rig.set.cleared == 2 * kChunk);
}

Task<void> fail_flushes(Executor*, const Request* request, Rig* rig, bool* failing) {
  if (request->operation == Operation::kFlush && *failing) rig->set.fail_next = true;
  co_return;
}

// What a flush that failed was to keep is made zeros again.
Task<void> flush_fails(Executor* home) {
  Rig rig(*home, Content{}, false, everything_old());
  bool failing = true;
  rig.set.on_change = [&](const Request* request) {
    return fail_flushes(home, request, &rig, &failing);
  };
  Completion done = co_await ask(&rig, Operation::kWrite, 5, 8, 1);
  CHECK(done.error == Error::kHardware);
  CHECK(rig.set.cleared == kChunk);
  CHECK(rig.commits == 0);
  failing = false;
  done = co_await ask(&rig, Operation::kWrite, 5, 8, 1);
  CHECK(done.error == Error::kNone);
  CHECK(rig.set.cleared == 2 * kChunk);
}

Task<void> note_clearing(Executor* home, const Request* request, Duration takes, unsigned* at_once,
                         std::vector<Origin>* origins) {
  if (request->operation != Operation::kWriteZeroes) co_return;
  origins->push_back(request->origin);
  CHECK(++*at_once == 1);
  co_await home->sleep_for(takes);
  --*at_once;
}

// Two new volumes on a set, of which hosts use a third: one chunk at a time, which rests three
// times as long as it works, and is nobody's host.
Task<void> one_at_a_time(Executor* home) {
  FakeSet set(*home, Content{}, false);
  unsigned at_once = 0;
  std::vector<Origin> origins;
  set.on_change = [&](const Request* request) {
    return note_clearing(home, request, 10ms, &at_once, &origins);
  };
  const auto shared = lane();
  const auto keep = [](ClearedAreas::Record) -> Task<Error> { co_return Error::kNone; };
  const auto make = [&](std::uint64_t from, std::uint64_t chunks) {
    ClearedAreas areas;
    areas.add({.first = from, .block_count = chunks * kChunk}, kBlockBytes);
    return std::make_unique<Clearing>(set, std::move(areas), keep, shared);
  };
  const auto one = make(0, 8);
  const auto other = make(8 * kChunk, 8);
  const auto hosts = make(0, 0);
  one->start();
  other->start();
  const TimePoint began = home->now();
  while (home->now() < began + 400ms) {
    Request read;
    read.operation = Operation::kRead;
    read.extent = {.first = 0, .block_count = 1};
    read.data = co_await home->buffers().allocate(kBlockBytes);
    (void)co_await hosts->submit(std::move(read));
    co_await home->sleep_for(1ms);
  }
  const std::size_t beside_hosts = origins.size();
  CHECK(beside_hosts >= 8);
  CHECK(beside_hosts <= 11);
  CHECK(one->left_blocks() + other->left_blocks() > 0);
  co_await home->sleep_for(500ms);  // Hosts are idle: at full speed.
  CHECK(origins.size() == 16);
  CHECK(std::ranges::count(origins, Origin::kClearing) == 16);
  bool stopped = co_await one->stop(kNever);
  CHECK(stopped);
  stopped = co_await other->stop(kNever);
  CHECK(stopped);
  CHECK(one->left_blocks() + other->left_blocks() == 0);
}

void in_world(std::uint64_t seed, const std::function<Task<void>(Executor&)>& body) {
  const auto world = sim::World::create({.seed = seed});
  Executor& home = *world->executors()[0];
  const bool ended = world->run([&] { return body(home); });
  REQUIRE(ended);
}

}  // namespace

TEST_CASE("A volume on a set that is not blank shows zeros, and keeps what is written",
          "[clearing]") {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    CAPTURE(seed);
    in_world(seed, [seed](Executor& home) { return live(&home, seed % 2 == 0); });
  }
}

TEST_CASE("A volume that grows while it is cleared is cleared as a whole", "[clearing]") {
  in_world(1, [](Executor& home) { return grow(&home); });
}

TEST_CASE("A first write clears what it touches, and nothing else", "[clearing]") {
  in_world(1, [](Executor& home) { return costs_one_chunk(&home); });
}

TEST_CASE("First writes that come at once share a flush and a commit", "[clearing]") {
  in_world(1, [](Executor& home) { return share_turns(&home); });
}

TEST_CASE("A first write waits for its own chunks, and no longer than it may", "[clearing]") {
  in_world(1, [](Executor& home) { return nobody_waits_long(&home); });
}

TEST_CASE("Where a flush fails nothing counts as cleared", "[clearing]") {
  in_world(1, [](Executor& home) { return flush_fails(&home); });
}

TEST_CASE("One volume of a set is cleared at a time, and hosts of all come first", "[clearing]") {
  in_world(1, [](Executor& home) { return one_at_a_time(&home); });
}

TEST_CASE("A record of what is cleared is what it was, or refused", "[clearing]") {
  ClearedAreas areas = everything_old();
  const std::uint64_t large = std::uint64_t{100} << 31;  // 100 TiB.
  areas.add({.first = kSetBlocks, .block_count = large}, kBlockBytes);
  Entries entries = entries_of(areas);
  CHECK(entries.size() == 1);
  CHECK(entries.at("").size() < 1000);
  // What one write has cleared is a little of a record, however large the volume is.
  const auto clear = [&](Extent within) {
    const Extent chunk = *areas.first_old(within);
    areas.claim(chunk);
    const ClearedAreas::Record record = areas.record_with(std::span(&chunk, 1));
    std::size_t bytes = 0;
    for (const auto& [key, value] : record.changes) bytes += key.size() + value.value_or("").size();
    CHECK(bytes < 4096);
    change(entries, record);
    areas.keep(std::span(&chunk, 1));
    CHECK(decode(entries).unkept_blocks() == areas.unkept_blocks());
    CHECK(entries_of(decode(entries)) == entries);
    return chunk;
  };
  CHECK(clear({.first = kFirst, .block_count = 1}).block_count == kChunk);
  clear({.first = kFirst + kBlocks - 1, .block_count = 1});
  clear({.first = kSetBlocks + large / 2, .block_count = 8});
  clear({.first = kSetBlocks + large - 1, .block_count = 1});
  CHECK(areas.unkept_blocks() == kBlocks + large - 3 * kChunk - 3000 % kChunk);
  CHECK(entries.size() == 4);
  while (areas.first_old({.first = kFirst, .block_count = kBlocks})) {
    clear({.first = kFirst, .block_count = kBlocks});
  }
  CHECK(entries.size() == 3);  // That area is gone.
}

TEST_CASE("What is cleared from the front takes no room", "[clearing]") {
  ClearedAreas areas;
  areas.add({.first = 0, .block_count = std::uint64_t{20} << 21}, kBlockBytes);  // 20 GiB.
  Entries entries = entries_of(areas);
  std::uint64_t most = 0;
  while (!areas.empty()) {
    std::vector<Extent> chunks;
    while (chunks.size() < 1000 && areas.first_old()) {
      chunks.push_back(*areas.first_old());
      areas.claim(chunks.back());
    }
    CHECK(areas.unkept_blocks() > 0);
    change(entries, areas.record_with(chunks));
    areas.keep(chunks);
    CHECK(decode(entries).unkept_blocks() == areas.unkept_blocks());
    most = std::max<std::uint64_t>(most, entries.size());
  }
  CHECK(most == 2);
  CHECK(entries.empty());
}

TEST_CASE("What has been given back is old again", "[clearing]") {
  ClearedAreas areas = everything_old();
  const Extent first = *areas.first_old();
  areas.claim(first);
  const Extent second = *areas.first_old();
  CHECK(second.first == first.end());
  areas.claim(second);
  areas.give_back(first);
  CHECK(areas.first_old() == first);
  CHECK(areas.unkept_blocks() == kBlocks);
  CHECK(entries_of(areas) == entries_of(everything_old()));
}

// As volumes had it that were made before: chunks of 4 MiB, of which the first and third are clear.
TEST_CASE("A record of the older form is understood, and is of the new one afterwards",
          "[clearing]") {
  const Entries old = {{"", R"({"format":1,"areas":[{"first_block":1000,"blocks":35768,)"
                            R"("chunk_blocks":8192,"cleared":"50"}]})"}};
  ClearedAreas areas = decode(old);
  CHECK(areas.unkept_blocks() == kBlocks - 2 * 8192);
  CHECK(areas.kept({.first = kFirst, .block_count = 8192}));
  CHECK_FALSE(areas.kept({.first = kFirst, .block_count = 8193}));
  CHECK(areas.first_old()->first == kFirst + 8192);
  const Extent chunk = *areas.first_old();
  areas.claim(chunk);
  Entries entries = old;
  change(entries, areas.record_with(std::span(&chunk, 1)));
  areas.keep(std::span(&chunk, 1));
  CHECK(entries.size() == 2);
  CHECK(entries.at("").find("\"format\":2") != std::string::npos);
  CHECK(decode(entries).unkept_blocks() == areas.unkept_blocks());
  CHECK(decode(entries).first_old()->first == kFirst + 8192 + kChunk);
}

TEST_CASE("A record of what is cleared that cannot be is refused", "[clearing]") {
  const auto refused = [](const Entries& entries) {
    const std::vector<std::pair<std::string, std::string>> list(entries.begin(), entries.end());
    return !ClearedAreas::decode(list, kBlockBytes).has_value();
  };
  CHECK_FALSE(refused({}));
  CHECK(refused({{"", ""}}));
  CHECK(refused({{"", R"({"format":3,"areas":[]})"}}));
  CHECK(refused({{"/0000000000000000/00000000", "0"}}));
  for (const char* area :
       {R"({"first_block":0,"blocks":0,"chunk_blocks":1,"cleared_parts":0})",
        R"({"first_block":0,"blocks":9,"chunk_blocks":0,"cleared_parts":0})",
        R"({"first_block":0,"blocks":9,"chunk_blocks":1,"cleared_parts":1})",
        R"({"first_block":0,"blocks":18446744073709551615,"chunk_blocks":1,"cleared_parts":0})",
        R"({"first_block":18446744073709551615,"blocks":8,"chunk_blocks":8,"cleared_parts":0})",
        R"({"first_block":0,"blocks":9,"chunk_blocks":1,"cleared_parts":0},
           {"first_block":8,"blocks":9,"chunk_blocks":1,"cleared_parts":0})"}) {
    CAPTURE(area);
    CHECK(refused({{"", std::string(R"({"format":2,"areas":[)") + area + "]}"}}));
  }
  const std::string good =
      R"({"format":2,"areas":[{"first_block":16,"blocks":20000,"chunk_blocks":1,)"
      R"("cleared_parts":1}]})";
  const std::string digits(2048, '3');
  CHECK_FALSE(refused({{"", good}, {"/0000000000000010/00000001", digits}}));
  CHECK(refused({{"", good}, {"/0000000000000010/00000000", digits}}));
  CHECK(refused({{"", good}, {"/0000000000000010/00000001", digits + "0"}}));
  CHECK(refused({{"", good}, {"/0000000000000010/00000003", digits}}));
  CHECK(refused({{"", good}, {"/0000000000000010/0000000g", digits}}));
  CHECK(refused({{"", good}, {"/0000000000000011/00000001", digits}}));
  CHECK(refused({{"", good}, {"/0000000000000010/00000001", std::string(2048, 'G')}}));
  for (const char* area : {R"({"first_block":0,"blocks":9,"chunk_blocks":1,"cleared":"00"})",
                           R"({"first_block":0,"blocks":8,"chunk_blocks":1,"cleared":"0g"})"}) {
    CHECK(refused({{"", std::string(R"({"format":1,"areas":[)") + area + "]}"}}));
  }
}

}  // namespace sandbay::group
