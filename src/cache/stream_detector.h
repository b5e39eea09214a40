// StreamDetector: finds sequential and strided streams among the reads of one volume and says what
// to read ahead for each. Pure: extents and times in, advice out; it does no I/O.
//
// A stream is found by its third request, in whatever order the three arrive, as requests of one
// session do over several connections:
//   - forward or backward: three different requests of one length, whole lengths apart and near one
//     another, or three requests each of which begins where another ends;
//   - strided: three requests of one length at equal distances, of up to 4 MiB; distances of more
//     than kCloseStride lengths count only among the last few requests.
// From then on a request belongs to the stream if it lies near its front. What is advised is the
// window before the front, in large pieces that end at stripes. The window follows the stream's
// pace: as far as it gets in kWindowTime, never below four requests, never above its share of the
// memory.
//
// Random reads cost a scan over two small arrays. In a small part of a volume they look like
// streams now and then. A stream has proven itself when some of its requests, and not too few of
// them, have followed exactly where it had come to; where most of those that were found lately did
// not, new ones are not believed, and advise nothing, before they have. Nothing allocates after the
// constructor. Used on one executor; the budget may be shared by the volumes of that executor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "block/block_device.h"
#include "runtime/clock.h"

namespace sandbay::cache {

// What all streams of a controller share.
struct StreamBudget {
  std::uint64_t memory_bytes = std::uint64_t{64} << 20;         // For what was read ahead.
  std::uint64_t largest_window_bytes = std::uint64_t{8} << 20;  // For one stream.
  unsigned most_streams = 1024;
  unsigned streams = 0;  // Found, in all detectors.
};

struct StreamOptions {
  std::uint32_t block_bytes = 512;
  std::uint64_t block_count = 0;    // Of the volume: nothing behind it is advised.
  std::uint32_t stripe_blocks = 0;  // Pieces end at multiples of it; 0: no preference.
  unsigned most_streams = 128;      // Of this volume.
  std::uint64_t largest_window_bytes = std::uint64_t{8} << 20;
};

// Where to read ahead now. Most requests need nothing.
struct StreamAdvice {
  static constexpr std::size_t kMost = 8;
  std::array<Extent, kMost> extents;
  std::size_t count = 0;

  void add(const Extent& extent) noexcept {
    if (count < kMost && extent.block_count > 0) extents[count++] = extent;
  }
};

struct StreamCounters {
  std::uint64_t found = 0;
  std::uint64_t forgotten = 0;  // To make room for others, or because they had ended.
  std::uint64_t in_stream = 0;  // Requests that belonged to one.
};

class StreamDetector {
 public:
  // Borrows the budget.
  StreamDetector(StreamOptions options, StreamBudget& budget);
  ~StreamDetector();
  StreamDetector(const StreamDetector&) = delete;
  StreamDetector& operator=(const StreamDetector&) = delete;

  StreamAdvice on_read(const Extent& read, TimePoint now);
  void grow(std::uint64_t block_count) { options_.block_count = block_count; }

  std::size_t stream_count() const noexcept { return streams_.size(); }
  const StreamCounters& counters() const noexcept { return counters_; }

 private:
  enum class Kind : std::uint8_t { kForward, kBackward, kStrided };
  struct Stream {
    Kind kind = Kind::kForward;
    std::uint32_t length = 0;  // Of its requests, the longest lately, in blocks.
    // Sequential: [low, high) is what it has come through. Strided: the first blocks
    // of the requests that are furthest, in its direction and against it.
    Lba low = 0;
    Lba high = 0;
    std::int64_t stride = 0;
    Lba ahead = 0;  // How far it was advised: an end, backward a beginning, strided a first block.
    std::uint64_t window = 0;  // Blocks; strided: of the requests together.
    unsigned against = 0;      // Requests that went the other way.
    TimePoint paced_since{};
    std::uint64_t paced_blocks = 0;
    double blocks_per_second = 0;
    TimePoint last_use{};
    std::uint64_t found_at = 0;  // How many reads there had been.
    // Its requests lately, and those that began exactly where it had come to.
    unsigned joined = 0;
    unsigned followed = 0;
    bool judged = false;  // It counts as proven, or as none.
  };
  struct Seen {  // A request that belongs to no stream yet.
    Lba first = 0;
    std::uint32_t length = 0;
  };

  static constexpr std::size_t kSeen = 256;
  static constexpr std::size_t kMostNear = 24;
  struct Near {  // Newest first.
    std::array<Seen, kMostNear> seen;
    std::array<std::size_t, kMostNear> age;  // 1: the last one that belonged to no stream.
    std::size_t count = 0;
  };

  std::uint16_t key_of(Lba lba) const;
  void set_key(std::size_t index);
  Stream* find(const Extent& read);
  bool joins(const Stream& stream, const Extent& read) const;
  bool refine(Stream& stream, const Extent& read);
  static void advance_strided(Stream& stream, const Extent& read);
  void advance(Stream& stream, const Extent& read, TimePoint now);
  static void turn(Stream& stream);
  static bool follows(const Stream& stream, const Extent& read);
  static void note_join(Stream& stream, const Extent& read);
  static bool believable(const Stream& stream);
  void judge(Stream& stream, bool proven);
  void judge_old();
  StreamAdvice advise_believed(Stream& stream);
  static void pace(Stream& stream, std::uint64_t blocks, TimePoint now);
  Stream* new_stream(TimePoint now);
  void drop(std::size_t index);

  void remember(const Extent& read);
  void forget_seen(Lba low, Lba high);
  Near near(const Extent& read) const;
  Stream* begin(const Extent& read, TimePoint now);
  Stream* begin_strided(const Near& near, const Extent& read, TimePoint now);
  Stream* begin_sequential(const Near& near, const Extent& read, TimePoint now);

  std::uint64_t most_window(const Stream& stream) const;
  StreamAdvice advise(Stream& stream);
  void advise_forward(Stream& stream, std::uint64_t wanted, StreamAdvice& advice) const;
  void advise_backward(Stream& stream, std::uint64_t wanted, StreamAdvice& advice) const;
  void advise_strided(Stream& stream, std::uint64_t wanted, StreamAdvice& advice) const;

  StreamOptions options_;
  StreamBudget& budget_;
  std::uint64_t near_blocks_;
  std::vector<Stream> streams_;
  // Where the front of each stream is, in units so large that a request of it lies in this one or
  // one beside it, of which the lowest bits tell enough; strided ones are looked at one by one.
  std::vector<std::uint16_t> keys_;
  unsigned strided_ = 0;
  std::array<Seen, kSeen> seen_{};
  std::array<std::uint16_t, kSeen> seen_keys_{};
  std::size_t seen_next_ = 0;
  std::uint64_t reads_ = 0;
  // Of the streams found lately.
  unsigned proven_ = 0;
  unsigned disproven_ = 0;
  StreamCounters counters_;
};

}  // namespace sandbay::cache
