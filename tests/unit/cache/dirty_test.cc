// The order of releases, against a crash at every step: random writes to a few lines, random
// destages of single lines; after each step, replaying what is not released over what is durable
// gives the newest content everywhere.
#include "cache/dirty.h"

#include <catch2/catch.hpp>
#include <map>
#include <vector>

#include "runtime/random.h"

namespace sandbay::cache {
namespace {

constexpr unsigned kLines = 3;
constexpr unsigned kBlocks = 16;  // Of a line.

// Lines without segments: who is newest on a block stands in an array here.
class Model {
 public:
  explicit Model(std::uint64_t seed) : random_(seed) {}
  ~Model() {
    for (unsigned line = 0; line < kLines; ++line) destage(line, 0, kBlocks);
    CHECK(live_.empty());
  }

  void write() {
    const unsigned first = static_cast<unsigned>(random_.below(kLines * kBlocks));
    const unsigned count =
        static_cast<unsigned>(random_.between(1, std::min(kLines * kBlocks - first, 24U)));
    const unsigned first_line = first / kBlocks;
    const unsigned last_line = (first + count - 1) / kBlocks;
    DirtyRecord& record = *DirtyRecord::make(last_line - first_line + 1);
    record.sequence = ++sequence_;
    record.extent = {first, count};
    live_[record.sequence] = record.extent;
    for (unsigned line = first_line; line <= last_line; ++line) {
      DirtyPart& part = record.parts()[line - first_line];
      const unsigned from = std::max(first, line * kBlocks);
      const unsigned end = std::min(first + count, (line + 1) * kBlocks);
      part.range = {.first = from - line * kBlocks, .count = end - from};
      part.dirty_blocks = part.range.count;
      for (unsigned block = from; block < end; ++block) {
        if (dirty_[block] != nullptr) Releases::overwritten(*dirty_[block], 1);
        dirty_[block] = &part;
        newest_[block] = record.sequence;
      }
      append_part(lines_[line], part);
    }
    for (unsigned line = first_line; line <= last_line; ++line) check_releases(line);
  }

  void destage() {
    const auto line = static_cast<unsigned>(random_.below(kLines));
    const auto first = static_cast<unsigned>(random_.below(kBlocks));
    destage(line, first, static_cast<unsigned>(random_.between(first + 1, kBlocks)));
  }

  void check_crash() const {
    std::array<std::uint64_t, kLines * kBlocks> content = durable_;
    for (const auto& [sequence, extent] : live_) {
      for (Lba block = extent.first; block < extent.end(); ++block) content[block] = sequence;
    }
    REQUIRE(content == newest_);
  }

  // Whoever holds a record from being released leads, step by step, to its release.
  void release_oldest() {
    for (const Line& line : lines_) {
      while (line.first_part != nullptr) {
        const DirtyPart& holder = what_holds(*line.first_part);
        REQUIRE(holder.dirty_blocks > 0);
        destage(static_cast<unsigned>(holder.line - lines_.data()), holder.range.first,
                holder.range.end());
        check_crash();
      }
    }
    REQUIRE(live_.empty());
  }

  std::size_t live() const { return live_.size(); }

 private:
  void destage(unsigned line, unsigned first, unsigned end) {
    for (unsigned i = first; i < end; ++i) {
      const unsigned block = line * kBlocks + i;
      if (dirty_[block] == nullptr) continue;
      durable_[block] = dirty_[block]->record->sequence;
      Releases::cleaned(*dirty_[block], 1);
      dirty_[block] = nullptr;
    }
    check_releases(line);
  }

  void check_releases(unsigned line) {
    releases_.check(lines_[line], [this](DirtyRecord* record) {
      live_.erase(record->sequence);
      check_crash();
      DirtyRecord::destroy(record);
    });
  }

  Random random_;
  Releases releases_;
  std::uint64_t sequence_ = 0;
  std::array<Line, kLines> lines_;
  std::array<DirtyPart*, kLines * kBlocks> dirty_{};
  std::array<std::uint64_t, kLines * kBlocks> durable_{};
  std::array<std::uint64_t, kLines * kBlocks> newest_{};
  std::map<std::uint64_t, Extent> live_;
};

TEST_CASE("No release makes a crash bring back old content", "[cache][dirty]") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    Model model(seed);
    Random random(seed);
    for (int step = 0; step < 400; ++step) {
      if (random.chance(0.6)) {
        model.write();
      } else {
        model.destage();
      }
      model.check_crash();
    }
    if (seed % 2 == 0) model.release_oldest();
  }
}

TEST_CASE("A block written again and again does not keep its old records", "[cache][dirty]") {
  DirtyRecord* wide = DirtyRecord::make(1);
  Line line;
  Releases releases;
  std::vector<DirtyRecord*> released;
  const auto note = [&released](DirtyRecord* record) { released.push_back(record); };
  wide->parts()[0].range = {.first = 0, .count = 16};
  wide->parts()[0].dirty_blocks = 16;
  append_part(line, wide->parts()[0]);
  DirtyPart* last = &wide->parts()[0];
  for (int i = 0; i < 10; ++i) {
    DirtyRecord* const again = DirtyRecord::make(1);
    again->parts()[0].range = {.first = 4, .count = 1};
    again->parts()[0].dirty_blocks = 1;
    append_part(line, again->parts()[0]);
    Releases::overwritten(*last, 1);
    last = &again->parts()[0];
    releases.check(line, note);
  }
  // All but the wide one, which is still dirty elsewhere, and the newest.
  REQUIRE(released.size() == 9);
  // The newest must outlive the wide one.
  Releases::cleaned(*last, 1);
  releases.check(line, note);
  REQUIRE(released.size() == 9);
  Releases::cleaned(wide->parts()[0], 15);
  releases.check(line, note);
  REQUIRE(released.size() == 11);
  REQUIRE(released[9] == wide);
  for (DirtyRecord* const record : released) DirtyRecord::destroy(record);
}

}  // namespace
}  // namespace sandbay::cache
