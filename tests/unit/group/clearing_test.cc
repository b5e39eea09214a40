// A new volume on a set that is not blank: nothing of before is ever read, and what was written
// stays, also after a crash at any moment; with drives that free space and with drives that do not.
#include "group/clearing.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <deque>

#include "runtime/simulation.h"

namespace sandbay::group {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kBlockBytes = 512;
constexpr std::uint32_t kJunk = 0xdeadbeef;
constexpr std::uint64_t kChunk = (std::uint64_t{4} << 20) / kBlockBytes;
constexpr Lba kFirst = 1000;  // Where the volume lies.
constexpr std::uint64_t kBlocks = 4 * kChunk + 3000;
constexpr std::uint64_t kSetBlocks = kFirst + kBlocks + 500;
constexpr std::uint64_t kMostAtOnce = 2048;

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
    if (request.operation == Operation::kUnmap && refuse_unmap) {
      completion.error = Error::kUnsupported;
    } else if (request.operation == Operation::kFlush) {
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
  bool refuse_unmap = false;
  std::uint64_t cleared = 0;

 private:
  Executor& home_;
  Content content_;
  std::vector<std::uint32_t> visible_;
  Geometry geometry_;
};

// What is there when the power goes, and what a host knows.
struct Cut {
  Content content;
  std::string record;
  std::vector<std::uint32_t> acknowledged;
  Extent in_flight;
  std::uint32_t in_flight_number = 0;
};

struct Rig {
  Executor& home;
  bool unmap;
  FakeSet set;
  Clearing clearing;
  std::string record;  // In the metadata.
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
        clearing(set, areas, [this](std::string kept) { return keep(this, std::move(kept)); }),
        record(areas.empty() ? std::string() : areas.encode()) {}

  static Task<Error> keep(Rig* rig, std::string kept) {
    if (rig->failing) co_return Error::kHardware;
    rig->perhaps_cut();
    co_await rig->home.sleep_for(100us);
    rig->record = std::move(kept);
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
  ClearedAreas areas;
  if (!cut->record.empty()) {
    const auto decoded = ClearedAreas::decode(cut->record);
    REQUIRE(decoded.has_value());
    areas = *decoded;
  }
  Rig rig(*home, std::move(content), unmap, areas);
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
  Rig rig(*home, Content{}, false, half);
  Completion done = co_await ask(&rig, Operation::kWrite, 5, 10, 7);
  CHECK(done.error == Error::kNone);
  const Extent added{.first = kFirst + 2 * kChunk + 17, .block_count = kBlocks - 2 * kChunk - 17};
  Error error = co_await rig.clearing.grow(
      added, [](std::string) -> Task<Error> { co_return Error::kHardware; });
  CHECK(error == Error::kHardware);
  CHECK(rig.clearing.left_blocks() == kChunk + 17);
  error = co_await rig.clearing.grow(
      added, [&rig](std::string record) { return Rig::keep(&rig, std::move(record)); });
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

TEST_CASE("A record of what is cleared is what it was, or refused", "[clearing]") {
  ClearedAreas areas = everything_old();
  areas.add({.first = kSetBlocks, .block_count = std::uint64_t{1} << 31}, kBlockBytes);
  CHECK(areas.encode().size() < 20000);
  areas.mark_zeroed(*areas.first_old());
  const auto again = ClearedAreas::decode(areas.encode());
  REQUIRE(again.has_value());
  CHECK(again->encode() == areas.encode());
  CHECK(again->unkept_blocks() == areas.unkept_blocks() - kChunk);
  areas.keep_zeroed();
  CHECK(again->unkept_blocks() == areas.unkept_blocks());
  CHECK_FALSE(ClearedAreas::decode("").has_value());
  CHECK_FALSE(ClearedAreas::decode(R"({"format":2,"areas":[]})").has_value());
  for (const char* area :
       {R"({"first_block":0,"blocks":0,"chunk_blocks":1,"cleared":""})",
        R"({"first_block":0,"blocks":9,"chunk_blocks":0,"cleared":"0"})",
        R"({"first_block":0,"blocks":9,"chunk_blocks":1,"cleared":"00"})",
        R"({"first_block":0,"blocks":8,"chunk_blocks":1,"cleared":"0g"})",
        R"({"first_block":18446744073709551615,"blocks":8,"chunk_blocks":8,"cleared":"0"})"}) {
    CHECK_FALSE(
        ClearedAreas::decode(std::string(R"({"format":1,"areas":[)") + area + "]}").has_value());
  }
}

}  // namespace sandbay::group
