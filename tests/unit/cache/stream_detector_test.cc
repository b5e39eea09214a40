// Streams among reads: forward, backward, strided, many at once, out of order, and random reads
// that are none.
//
// Each test plays requests and keeps what has been advised; a read counts as covered if all of it
// was advised before it came.
#include "cache/stream_detector.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/random.h"

namespace sandbay::cache {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kDeviceBlocks = std::uint64_t{1} << 31;  // 1 TiB.

class Player {
 public:
  explicit Player(StreamOptions options = {}, StreamBudget budget = {}) : budget_(budget) {
    if (options.block_count == 0) options.block_count = kDeviceBlocks;
    detector_.emplace(options, budget_);
    block_count_ = options.block_count;
  }

  // Whether all of it had been advised.
  bool read(Lba first, std::uint64_t count) {
    const bool covered = is_covered({first, count});
    now_ += 100us;
    const StreamAdvice advice = detector_->on_read({first, count}, now_);
    for (std::size_t i = 0; i < advice.count; ++i) {
      const Extent& extent = advice.extents[i];
      REQUIRE(extent.block_count > 0);
      REQUIRE(extent.end() <= block_count_);
      advised_.push_back(extent);
      advised_blocks_ += extent.block_count;
      pieces_.push_back(extent.block_count);
    }
    return covered;
  }

  StreamDetector& detector() { return *detector_; }
  std::uint64_t advised_blocks() const { return advised_blocks_; }
  const std::vector<std::uint64_t>& pieces() const { return pieces_; }

 private:
  // Advice is looked at from the newest back; pieces of one stream touch.
  bool is_covered(Extent wanted) const {
    while (wanted.block_count > 0) {
      const auto found = std::ranges::find_if(advised_.rbegin(), advised_.rend(), [&](Extent e) {
        return e.first <= wanted.first && wanted.first < e.end();
      });
      if (found == advised_.rend()) return false;
      const std::uint64_t part = std::min(found->end(), wanted.end()) - wanted.first;
      wanted.first += part;
      wanted.block_count -= part;
    }
    return true;
  }

  StreamBudget budget_;
  std::optional<StreamDetector> detector_;
  std::uint64_t block_count_ = 0;
  TimePoint now_{};
  std::vector<Extent> advised_;
  std::vector<std::uint64_t> pieces_;
  std::uint64_t advised_blocks_ = 0;
};

// The n-th request of a stream.
using Pattern = Lba (*)(Lba base, std::uint64_t n, std::uint64_t length);
Lba forward(Lba base, std::uint64_t n, std::uint64_t length) { return base + n * length; }
Lba backward(Lba base, std::uint64_t n, std::uint64_t length) { return base - n * length; }
Lba strided(Lba base, std::uint64_t n, std::uint64_t length) { return base + n * length * 7; }
Lba strided_back(Lba base, std::uint64_t n, std::uint64_t length) { return base - n * length * 5; }

struct Named {
  const char* name;
  Pattern pattern;
};
constexpr Named kPatterns[] = {{"forward", forward},
                               {"backward", backward},
                               {"strided", strided},
                               {"strided back", strided_back}};

// Each request overtakes at most `reach` others.
std::vector<std::uint64_t> shuffled(std::uint64_t count, std::uint64_t reach, Random& random) {
  std::vector<std::uint64_t> order;
  std::vector<std::uint64_t> in_flight;
  std::uint64_t next = 0;
  while (order.size() < count) {
    while (in_flight.size() < reach && next < count) in_flight.push_back(next++);
    // Nobody stays behind for more than two turns of the others.
    const auto oldest = std::ranges::min_element(in_flight);
    const auto picked =
        *oldest + 2 * reach <= next
            ? oldest
            : in_flight.begin() + static_cast<std::ptrdiff_t>(random.below(in_flight.size()));
    order.push_back(*picked);
    in_flight.erase(picked);
  }
  return order;
}

}  // namespace

TEST_CASE("A stream is found by its third request, and all that follows was advised",
          "[stream_detector]") {
  for (const auto& [name, pattern] : kPatterns) {
    for (const std::uint64_t length : {1, 8, 16, 128, 2048}) {
      // The longest stride is 4 MiB.
      if (length == 2048 && (pattern == strided || pattern == strided_back)) continue;
      CAPTURE(name, length);
      Player player;
      const Lba base = kDeviceBlocks / 2;
      for (std::uint64_t n = 0; n < 400; ++n) {
        const bool covered = player.read(pattern(base, n, length), length);
        CAPTURE(n);
        REQUIRE(covered == (n >= 3));
        REQUIRE(player.detector().stream_count() == (n >= 2 ? 1 : 0));
      }
    }
  }
}

TEST_CASE("Requests of different lengths in a row are a stream", "[stream_detector]") {
  Random random(3);
  Player player;
  Lba at = 1000;
  for (int n = 0; n < 300; ++n) {
    const std::uint64_t length = 1 + random.below(200);
    const bool covered = player.read(at, length);
    at += length;
    CAPTURE(n);
    // A request may be longer than the whole window of the first ones.
    if (n > 8) REQUIRE(covered);
  }
  CHECK(player.detector().counters().found == 1);
}

TEST_CASE("Streams are found when their requests overtake one another", "[stream_detector]") {
  for (const auto& [name, pattern] : kPatterns) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      CAPTURE(name, seed);
      Random random(seed);
      Player player;
      std::uint64_t missed = 0;
      for (const std::uint64_t n : shuffled(500, 8, random)) {
        missed += player.read(pattern(kDeviceBlocks / 2, n, 16), 16) ? 0 : 1;
      }
      // Those that were on their way when the stream was found, and as many again if it looked as
      // if it went the other way.
      CHECK(missed <= 24);
      CHECK(player.detector().counters().found <= 8);
    }
  }
}

TEST_CASE("Many streams of all kinds among random reads are told apart", "[stream_detector]") {
  constexpr std::uint64_t kStreams = 96;
  Random random(7);
  Player player;
  std::uint64_t missed = 0;
  std::vector<std::uint64_t> next(kStreams);
  for (int n = 0; n < 40000; ++n) {
    if (random.chance(0.1)) {
      player.read(random.below(kDeviceBlocks - 8), 8);
      continue;
    }
    // Round robin, as streams of equal pace come.
    const auto stream = static_cast<std::uint64_t>(n) % kStreams;
    const Lba base = (stream + 1) * (kDeviceBlocks / (kStreams + 2));
    const Lba first = kPatterns[stream % 4].pattern(base, next[stream]++, 64);
    const bool covered = player.read(first, 64);
    missed += !covered && next[stream] > 3 ? 1 : 0;
  }
  CHECK(player.detector().stream_count() >= kStreams);
  CHECK(missed <= 40);
}

TEST_CASE("A thousand streams of several volumes share a budget", "[stream_detector]") {
  StreamBudget budget{.memory_bytes = std::uint64_t{256} << 20};
  std::vector<std::unique_ptr<StreamDetector>> volumes;
  for (int i = 0; i < 10; ++i) {
    volumes.push_back(
        std::make_unique<StreamDetector>(StreamOptions{.block_count = kDeviceBlocks}, budget));
  }
  TimePoint now{};
  std::uint64_t largest = 0;
  for (std::uint64_t n = 0; n < 200; ++n) {
    for (std::uint64_t stream = 0; stream < 1100; ++stream) {
      now += 1us;
      const Lba first = (stream / 10 + 1) * (kDeviceBlocks / 128) + n * 128;
      const StreamAdvice advice = volumes[stream % 10]->on_read({first, 128}, now);
      for (std::size_t i = 0; i < advice.count; ++i) {
        largest = std::max(largest, advice.extents[i].block_count);
      }
    }
  }
  CHECK(budget.streams == 1024);
  CHECK(largest * 512 <= budget.memory_bytes / 500);  // A share, not more.
  volumes.clear();
  CHECK(budget.streams == 0);
}

TEST_CASE("Random reads are no streams", "[stream_detector]") {
  // 1 TiB, 1 GiB, 64 MiB, 16 MiB.
  for (const std::uint64_t blocks :
       {kDeviceBlocks, std::uint64_t{1} << 21, std::uint64_t{1} << 17, std::uint64_t{1} << 15}) {
    Random random(11);
    Player player({.block_count = blocks});
    for (int n = 0; n < 100000; ++n) player.read(random.below(blocks / 8) * 8, 8);
    CAPTURE(blocks);
    // Of what was read, at most two per cent was read ahead for nothing.
    CHECK(player.advised_blocks() <= 100000 * 8 / 50);
  }
}

TEST_CASE("Streams are believed again after random reads, each when it has proven itself",
          "[stream_detector]") {
  Random random(12);
  Player player({.block_count = std::uint64_t{1} << 17});
  for (int n = 0; n < 20000; ++n) player.read(random.below(1 << 14) * 8, 8);
  const std::uint64_t before = player.advised_blocks();
  for (Lba lba = 0; lba < 4096; lba += 8) player.read(lba, 8);
  CHECK(player.advised_blocks() - before > 4096 / 2);
}

TEST_CASE("Pieces end at stripes and grow to half a megabyte", "[stream_detector]") {
  Player player({.stripe_blocks = 384});  // 3 x 64 KiB.
  for (std::uint64_t n = 0; n < 4000; ++n) player.read(n * 16, 16);
  const auto& pieces = player.pieces();
  REQUIRE(pieces.size() > 5);
  CHECK(pieces.back() >= 1024);
  for (std::size_t i = pieces.size() / 2; i < pieces.size(); ++i) CHECK(pieces[i] % 384 == 0);
}

TEST_CASE("Nothing is advised outside of the volume", "[stream_detector]") {
  // Player checks every piece.
  Player up({.block_count = 1000});
  for (std::uint64_t n = 0; n < 62; ++n) up.read(n * 16, 16);
  up.read(992, 8);
  Player down({.block_count = 1000});
  for (std::uint64_t n = 0; n < 62; ++n) down.read(984 - n * 16, 16);
  Player stride({.block_count = 10000});
  for (std::uint64_t n = 0; n < 100; ++n) stride.read(n * 100, 10);
  CHECK(stride.advised_blocks() == 97 * 10);
}

TEST_CASE("A stream that seemed to go back turns", "[stream_detector]") {
  Player player;
  const Lba base = 100000;
  for (const std::uint64_t n : {2, 1, 0}) player.read(base + n * 16, 16);
  std::uint64_t missed = 0;
  for (std::uint64_t n = 3; n < 100; ++n) missed += player.read(base + n * 16, 16) ? 0 : 1;
  CHECK(missed <= 2);
  CHECK(player.detector().stream_count() == 1);
}

}  // namespace sandbay::cache
