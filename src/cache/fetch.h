// Fetch: one read of the device below into the cache, and everybody who waits for it.
//
// It covers a run of blocks that no line had when it began, at most kMostFetchBytes, and has a part
// in each line of them. At its end it fills gaps only: what was written meanwhile is newer.
#pragma once

#include <array>

#include "block/block_device.h"
#include "cache/line.h"
#include "runtime/sync.h"

namespace sandbay::cache {

struct Fetch;

inline constexpr std::uint64_t kMostFetchBytes = std::uint64_t{4} << 20;

struct FetchPart {
  Fetch* fetch = nullptr;
  Line* line = nullptr;
  FetchPart* next = nullptr;  // In the line.
  Range range;                // Within the line.
};

struct Fetch {
  Extent extent;
  Origin origin = Origin::kHost;
  Hint hint = Hint::kNormal;
  std::uint64_t volume = 0;
  unsigned users = 1;  // Those who wait, and the one who reads.
  bool ended = false;
  bool outdated = false;  // What it brings may be older than what was below since it began.
  Error error = Error::kNone;
  Condition end;
  BufferList data;
  unsigned part_count = 0;

  FetchPart* parts() noexcept { return reinterpret_cast<FetchPart*>(this + 1); }
  static Fetch* make(unsigned part_count);
  static void leave(Fetch* fetch) noexcept;  // The last one destroys it.

 private:
  Fetch() = default;
  ~Fetch() = default;
};

// No fetch in flight fills the range of the line: its data may be older than the segments that were
// taken out.
void outdate_fetches(Line& line, Range range) noexcept;

// The fetches that somebody waits for. He is one of their users, and leaves each of them.
struct Joined {
  static constexpr std::size_t kMost = 32;
  std::array<Fetch*, kMost> fetches;  // So many of them as count says.
  std::size_t count = 0;

  bool full() const noexcept { return count == kMost; }
  bool add(Fetch& fetch) noexcept {
    if (full()) return false;
    ++fetch.users;
    fetches[count++] = &fetch;
    return true;
  }
};

}  // namespace sandbay::cache
