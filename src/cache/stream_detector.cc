// How streams are found, followed and forgotten.

#include "cache/stream_detector.h"

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <numeric>
#include <utility>

namespace sandbay::cache {
namespace {

using namespace std::chrono_literals;

// How far, in requests, one of a stream may be from its front: commands of a session with several
// connections overtake one another.
constexpr std::uint64_t kReorder = 16;
// The same in bytes, at most; also the largest stride.
constexpr std::uint64_t kNearBytes = std::uint64_t{8} << 20;
constexpr std::uint64_t kFirstWindow = 4;  // Requests.
// What is read ahead is what the stream reads in so much time: many that share drives are slow for
// one another, and would stay so with small windows. Less while it is not certain that it goes on.
constexpr Duration kWindowTime = 1s;
constexpr Duration kUncertainWindowTime = 250ms;
constexpr unsigned kCertain = 8;  // So many requests, half of them exactly where it had come to.
constexpr Duration kPaceSample = 10ms;
constexpr Duration kForgotten = 30s;
// Requests against the direction before it turns.
constexpr unsigned kTurnAfter = 2;
// Strides in lengths of a request. Random reads of a small volume are at equal distances by chance:
// longer strides are believed only of requests that came one after the other.
constexpr std::int64_t kCloseStride = 64;
constexpr std::size_t kLastFew = 16;
// A stride that was found too long, since those between had not come yet.
constexpr std::int64_t kMostRefined = 8;
// Requests that follow exactly before a stream is proven, and the reads of the volume in which they
// have to come. How many have to be judged before that says anything, and how many are remembered.
constexpr unsigned kProof = 3;
constexpr unsigned kProofShare = 4;  // Of its requests; the others have overtaken one another.
constexpr unsigned kMostJoined = 64;
constexpr std::uint64_t kProofReads = 1024;
constexpr unsigned kLeastJudged = 8;
constexpr unsigned kMostJudged = 32;
constexpr std::uint16_t kNoKey = 0xffff;

// Whether any key is `key` or beside it. Written so that it becomes vector instructions.
bool any_near(const std::uint16_t* keys, std::size_t count, std::uint16_t key) {
  const auto before = static_cast<std::uint16_t>(key - 1);
  std::uint16_t nearest = 0xFFFF;
  for (std::size_t i = 0; i < count; ++i) {
    nearest = std::min(nearest, static_cast<std::uint16_t>(keys[i] - before));
  }
  return nearest <= 2;
}

bool is_near(std::uint16_t left, std::uint16_t right) {
  return static_cast<std::uint16_t>(left - right + 1) <= 2;
}

std::int64_t distance(Lba from, Lba to) { return static_cast<std::int64_t>(to - from); }

}  // namespace

StreamDetector::StreamDetector(StreamOptions options, StreamBudget& budget)
    : options_(options), budget_(budget), near_blocks_(kNearBytes / options.block_bytes) {
  streams_.reserve(options_.most_streams);
  keys_.reserve(options_.most_streams);
  seen_keys_.fill(kNoKey);
}

StreamDetector::~StreamDetector() { budget_.streams -= static_cast<unsigned>(streams_.size()); }

StreamAdvice StreamDetector::on_read(const Extent& read, TimePoint now) {
  if (read.block_count == 0) return {};
  ++reads_;
  if (Stream* const stream = find(read)) {
    ++counters_.in_stream;
    note_join(*stream, read);
    if (believable(*stream)) judge(*stream, true);
    advance(*stream, read, now);
    StreamAdvice advice = advise_believed(*stream);
    set_key(static_cast<std::size_t>(stream - streams_.data()));
    return advice;
  }
  Stream* const begun = begin(read, now);
  if (begun == nullptr) {
    remember(read);
    return {};
  }
  ++counters_.found;
  ++counters_.in_stream;
  StreamAdvice advice = advise_believed(*begun);
  set_key(static_cast<std::size_t>(begun - streams_.data()));
  return advice;
}

// What is believed ------------------------------------------------------------------------------

bool StreamDetector::follows(const Stream& stream, const Extent& read) {
  if (stream.kind == Kind::kStrided) return distance(stream.high, read.first) == stream.stride;
  return read.first == stream.high || read.end() == stream.low;
}

void StreamDetector::note_join(Stream& stream, const Extent& read) {
  ++stream.joined;
  if (follows(stream, read)) ++stream.followed;
  if (stream.joined < kMostJoined) return;
  stream.joined /= 2;
  stream.followed /= 2;
}

bool StreamDetector::believable(const Stream& stream) {
  return stream.followed >= kProof && stream.followed * kProofShare >= stream.joined;
}

void StreamDetector::judge(Stream& stream, bool proven) {
  if (stream.judged) return;
  stream.judged = true;
  ++(proven ? proven_ : disproven_);
  if (proven_ + disproven_ <= kMostJudged) return;
  proven_ /= 2;
  disproven_ /= 2;
}

void StreamDetector::judge_old() {
  for (Stream& stream : streams_) {
    if (reads_ - stream.found_at > kProofReads) judge(stream, false);
  }
}

StreamAdvice StreamDetector::advise_believed(Stream& stream) {
  const bool doubt = disproven_ > proven_ && proven_ + disproven_ >= kLeastJudged;
  if (doubt && !believable(stream)) return {};
  return advise(stream);
}

// Streams that are there ------------------------------------------------------------------------

std::uint16_t StreamDetector::key_of(Lba lba) const {
  return static_cast<std::uint16_t>(lba / near_blocks_);
}

void StreamDetector::set_key(std::size_t index) {
  const Stream& stream = streams_[index];
  keys_[index] = stream.kind == Kind::kForward    ? key_of(stream.high)
                 : stream.kind == Kind::kBackward ? key_of(stream.low)
                                                  : kNoKey;
}

StreamDetector::Stream* StreamDetector::find(const Extent& read) {
  const std::uint16_t key = key_of(read.first);
  if (any_near(keys_.data(), keys_.size(), key)) {
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      if (is_near(keys_[i], key) && joins(streams_[i], read)) return &streams_[i];
    }
  }
  if (strided_ == 0) return nullptr;
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (keys_[i] != kNoKey) continue;
    Stream& stream = streams_[i];
    if (stream.kind == Kind::kStrided && (joins(stream, read) || refine(stream, read))) {
      return &stream;
    }
  }
  return nullptr;
}

// A request between those that were expected: the stride is a fraction of what it seemed.
bool StreamDetector::refine(Stream& stream, const Extent& read) {
  const std::int64_t away = distance(stream.high, read.first);
  const std::int64_t stride = std::abs(stream.stride);
  if (read.block_count != stream.length) return false;
  if (std::abs(away) > kMostRefined * stride) return false;
  const std::int64_t finer = std::gcd(std::abs(away), stride);
  const auto length = static_cast<std::int64_t>(stream.length);
  if (stride / finer > kMostRefined || finer < length || finer % length != 0) return false;
  stream.window = 0;
  stream.ahead = stream.high;
  if (finer > length) {
    stream.stride = stream.stride > 0 ? finer : -finer;
    return true;
  }
  // No gaps at all.
  const bool forward = stream.stride > 0;
  --strided_;
  stream.kind = forward ? Kind::kForward : Kind::kBackward;
  const auto [first, last] = std::minmax(stream.low, stream.high);
  stream.low = first;
  stream.high = last + stream.length;
  stream.ahead = forward ? stream.high : stream.low;
  return true;
}

bool StreamDetector::joins(const Stream& stream, const Extent& read) const {
  const std::uint64_t length = std::max<std::uint64_t>(stream.length, read.block_count);
  if (stream.kind == Kind::kStrided) {
    if (read.block_count != stream.length) return false;
    const std::int64_t away = distance(stream.high, read.first);
    const auto most = static_cast<std::int64_t>(kReorder) * std::abs(stream.stride);
    return std::abs(away) <= most && away % stream.stride == 0;
  }
  const std::uint64_t slack = std::min(kReorder * length, near_blocks_);
  if (stream.kind == Kind::kForward) {
    const Lba front = std::max(stream.high + slack, stream.ahead);
    return read.first + slack >= stream.high &&
           read.first <= std::min(front, stream.high + near_blocks_);
  }
  const Lba end = read.end();
  return end <= stream.low + slack &&
         end + std::max(slack, stream.low - stream.ahead) >= stream.low;
}

void StreamDetector::advance(Stream& stream, const Extent& read, TimePoint now) {
  stream.last_use = now;
  pace(stream, read.block_count, now);
  if (stream.kind == Kind::kStrided) {
    advance_strided(stream, read);
    return;
  }
  stream.length = std::max(stream.length, static_cast<std::uint32_t>(read.block_count));
  const bool up = read.end() > stream.high;
  const bool down = read.first < stream.low;
  stream.high = std::max(stream.high, read.end());
  stream.low = std::min(stream.low, read.first);
  if (up == down) return;
  if (up == (stream.kind == Kind::kForward)) {
    stream.against = 0;
  } else if (++stream.against >= kTurnAfter) {
    turn(stream);
  }
}

void StreamDetector::advance_strided(Stream& stream, const Extent& read) {
  const bool up = stream.stride > 0;
  if (up ? read.first > stream.high : read.first < stream.high) {
    stream.high = read.first;
    stream.against = 0;
  } else if (up ? read.first < stream.low : read.first > stream.low) {
    stream.low = read.first;
    if (++stream.against < kTurnAfter) return;
    std::swap(stream.low, stream.high);
    stream.stride = -stream.stride;
    stream.ahead = stream.high;
    stream.against = 0;
    stream.window = 0;
  }
}

// It goes the other way than its first requests looked.
void StreamDetector::turn(Stream& stream) {
  stream.against = 0;
  stream.window = 0;
  const bool forward = stream.kind == Kind::kBackward;
  stream.kind = forward ? Kind::kForward : Kind::kBackward;
  stream.ahead = forward ? stream.high : stream.low;
}

void StreamDetector::pace(Stream& stream, std::uint64_t blocks, TimePoint now) {
  stream.paced_blocks += blocks;
  const Duration elapsed = now - stream.paced_since;
  if (elapsed < kPaceSample) return;
  const double seconds = std::chrono::duration<double>(elapsed).count();
  const double sample = static_cast<double>(stream.paced_blocks) / seconds;
  stream.blocks_per_second =
      stream.blocks_per_second == 0 ? sample : (stream.blocks_per_second * 3 + sample) / 4;
  stream.paced_since = now;
  stream.paced_blocks = 0;
}

void StreamDetector::drop(std::size_t index) {
  judge(streams_[index], false);
  if (streams_[index].kind == Kind::kStrided) --strided_;
  streams_[index] = streams_.back();
  keys_[index] = keys_.back();
  streams_.pop_back();
  keys_.pop_back();
  --budget_.streams;
  ++counters_.forgotten;
}

// Room for one more: that of the one used longest ago, if need be.
StreamDetector::Stream* StreamDetector::new_stream(TimePoint now) {
  judge_old();
  const bool full =
      streams_.size() >= options_.most_streams || budget_.streams >= budget_.most_streams;
  if (!streams_.empty()) {
    const auto oldest = std::ranges::min_element(streams_, {}, &Stream::last_use);
    if (full || now - oldest->last_use > kForgotten) {
      drop(static_cast<std::size_t>(oldest - streams_.begin()));
    }
  } else if (full) {
    return nullptr;
  }
  ++budget_.streams;
  streams_.emplace_back();
  keys_.push_back(kNoKey);
  Stream& stream = streams_.back();
  stream.last_use = now;
  stream.paced_since = now;
  stream.found_at = reads_;
  return &stream;
}

// New ones --------------------------------------------------------------------------------------

void StreamDetector::remember(const Extent& read) {
  seen_[seen_next_] = {.first = read.first, .length = static_cast<std::uint32_t>(read.block_count)};
  seen_keys_[seen_next_] = key_of(read.first);
  seen_next_ = (seen_next_ + 1) % kSeen;
}

void StreamDetector::forget_seen(Lba low, Lba high) {
  for (std::size_t i = 0; i < kSeen; ++i) {
    if (seen_[i].first >= low && seen_[i].first < high) seen_[i].length = 0;
  }
}

// The newest requests in the neighbourhood.
StreamDetector::Near StreamDetector::near(const Extent& read) const {
  Near near;
  const std::uint16_t key = key_of(read.first);
  if (!any_near(seen_keys_.data(), kSeen, key)) return near;
  for (std::size_t back = 1; back <= kSeen && near.count < kMostNear; ++back) {
    const std::size_t i = (seen_next_ + kSeen - back) % kSeen;
    if (!is_near(seen_keys_[i], key) || seen_[i].length == 0) continue;
    near.seen[near.count] = seen_[i];
    near.age[near.count++] = back;
  }
  return near;
}

StreamDetector::Stream* StreamDetector::begin(const Extent& read, TimePoint now) {
  const Near near_ones = near(read);
  if (near_ones.count < 2) return nullptr;
  if (Stream* const strided = begin_strided(near_ones, read, now)) return strided;
  return begin_sequential(near_ones, read, now);
}

StreamDetector::Stream* StreamDetector::begin_strided(const Near& near, const Extent& read,
                                                      TimePoint now) {
  const auto length = static_cast<std::int64_t>(read.block_count);
  for (std::size_t i = 0; i < near.count; ++i) {
    const Seen& other = near.seen[i];
    const std::int64_t stride = distance(other.first, read.first);
    if (other.length != read.block_count || std::abs(stride) < 2 * length) continue;
    const bool close = std::abs(stride) <= kCloseStride * length;
    if (!close && near.age[i] > kLastFew) continue;
    for (std::size_t k = 0; k < near.count; ++k) {
      const Seen& third = near.seen[k];
      if (!close && near.age[k] > kLastFew) break;
      if (third.length != read.block_count) continue;
      const bool behind = distance(third.first, other.first) == stride;
      const bool before = distance(read.first, third.first) == stride;
      if (!behind && !before) continue;
      Stream* const stream = new_stream(now);
      if (stream == nullptr) return nullptr;
      ++strided_;
      stream->kind = Kind::kStrided;
      stream->length = static_cast<std::uint32_t>(read.block_count);
      // With the new one in the middle, the newer of the others says which way it goes.
      const bool onward = behind || k < i;
      stream->stride = onward ? stride : -stride;
      stream->high = behind ? read.first : onward ? third.first : other.first;
      const std::int64_t come = 2 * stream->stride;
      stream->low = static_cast<Lba>(static_cast<std::int64_t>(stream->high) - come);
      stream->ahead = stream->high;
      forget_seen(other.first, other.first + 1);
      forget_seen(third.first, third.first + 1);
      return stream;
    }
  }
  return nullptr;
}

// Three of one length near one another, whole lengths apart, or three in a row.
StreamDetector::Stream* StreamDetector::begin_sequential(const Near& near, const Extent& read,
                                                         TimePoint now) {
  const std::uint64_t length = read.block_count;
  const std::uint64_t most = std::min(kReorder * length, near_blocks_);
  for (std::size_t i = 0; i < near.count; ++i) {
    const Seen& second = near.seen[i];
    const Lba second_end = second.first + second.length;
    const bool touches = second_end == read.first || second.first == read.end();
    const auto apart = static_cast<std::uint64_t>(std::abs(distance(second.first, read.first)));
    const bool even = second.length == length && apart != 0 && apart % length == 0 && apart <= most;
    if (!touches && !even) continue;
    for (std::size_t k = i + 1; k < near.count; ++k) {
      const Seen& first = near.seen[k];
      const Lba first_end = first.first + first.length;
      const bool in_row = touches && (first_end == second.first || first.first == second_end ||
                                      first_end == read.first || first.first == read.end());
      const Lba low = std::min({first.first, second.first, read.first});
      const Lba high = std::max({first_end, second_end, read.end()});
      const auto between = static_cast<std::uint64_t>(std::abs(distance(first.first, read.first)));
      const bool all_even = even && first.length == length && between % length == 0 &&
                            between != 0 && first.first != second.first &&
                            high - low <= most + length;
      if (!in_row && !all_even) continue;
      Stream* const stream = new_stream(now);
      if (stream == nullptr) return nullptr;
      // In the order of arrival all the way down: backward. Else forward, until it turns.
      const bool backward = first.first > second.first && second.first > read.first;
      stream->kind = backward ? Kind::kBackward : Kind::kForward;
      stream->length = std::max({first.length, second.length, static_cast<std::uint32_t>(length)});
      stream->low = low;
      stream->high = high;
      stream->ahead = backward ? low : high;
      forget_seen(low, high);
      return stream;
    }
  }
  return nullptr;
}

// Advice ----------------------------------------------------------------------------------------

std::uint64_t StreamDetector::most_window(const Stream& stream) const {
  const std::uint64_t share = budget_.memory_bytes / std::max(1U, budget_.streams);
  const std::uint64_t most = std::min(share, options_.largest_window_bytes) / options_.block_bytes;
  return std::max<std::uint64_t>(most, stream.length);
}

StreamAdvice StreamDetector::advise(Stream& stream) {
  StreamAdvice advice;
  const std::uint64_t most = most_window(stream);
  std::uint64_t wanted = most;
  if (stream.blocks_per_second > 0) {
    const bool certain = stream.joined >= kCertain && stream.followed * 2 >= stream.joined;
    const Duration time = certain ? kWindowTime : kUncertainWindowTime;
    const double paced = stream.blocks_per_second * std::chrono::duration<double>(time).count();
    if (paced < static_cast<double>(most)) wanted = static_cast<std::uint64_t>(paced);
  }
  const std::uint64_t least = std::min<std::uint64_t>(kFirstWindow * stream.length, most);
  wanted = std::max(wanted, least);
  // Of strided ones there is less evidence.
  if (stream.window == 0) stream.window = stream.kind == Kind::kStrided ? least / 2 : least;
  switch (stream.kind) {
    case Kind::kForward:
      advise_forward(stream, wanted, advice);
      break;
    case Kind::kBackward:
      advise_backward(stream, wanted, advice);
      break;
    case Kind::kStrided:
      advise_strided(stream, wanted, advice);
      break;
  }
  return advice;
}

// The next piece is advised when half of the window has been read, and the window then doubles
// until it is as large as wanted.
void StreamDetector::advise_forward(Stream& stream, std::uint64_t wanted,
                                    StreamAdvice& advice) const {
  stream.ahead = std::max(stream.ahead, stream.high);
  if (stream.ahead - stream.high > stream.window / 2) return;
  Lba end = std::min(stream.high + stream.window, options_.block_count);
  if (options_.stripe_blocks > 0 && end != options_.block_count) {
    const Lba whole = end / options_.stripe_blocks * options_.stripe_blocks;
    if (whole > stream.ahead) end = whole;
  }
  stream.window = std::min(stream.window * 2, wanted);
  if (end <= stream.ahead) return;
  advice.add({.first = stream.ahead, .block_count = end - stream.ahead});
  stream.ahead = end;
}

void StreamDetector::advise_backward(Stream& stream, std::uint64_t wanted,
                                     StreamAdvice& advice) const {
  stream.ahead = std::min(stream.ahead, stream.low);
  if (stream.low - stream.ahead > stream.window / 2) return;
  Lba first = stream.low - std::min(stream.low, stream.window);
  if (options_.stripe_blocks > 0) {
    const Lba whole =
        (first + options_.stripe_blocks - 1) / options_.stripe_blocks * options_.stripe_blocks;
    if (whole < stream.ahead) first = whole;
  }
  stream.window = std::min(stream.window * 2, wanted);
  if (first >= stream.ahead) return;
  advice.add({.first = first, .block_count = stream.ahead - first});
  stream.ahead = first;
}

void StreamDetector::advise_strided(Stream& stream, std::uint64_t wanted,
                                    StreamAdvice& advice) const {
  // It fell behind its own front.
  if (distance(stream.high, stream.ahead) / stream.stride < 0) stream.ahead = stream.high;
  const auto requests = static_cast<std::int64_t>(stream.window / stream.length);
  std::int64_t out = distance(stream.high, stream.ahead) / stream.stride;
  if (out > requests / 2) return;
  while (out < requests && advice.count < StreamAdvice::kMost) {
    const auto next = static_cast<std::int64_t>(stream.ahead) + stream.stride;
    if (next < 0 || static_cast<Lba>(next) + stream.length > options_.block_count) break;
    stream.ahead = static_cast<Lba>(next);
    advice.add({.first = stream.ahead, .block_count = stream.length});
    ++out;
  }
  stream.window = std::min(stream.window * 2, wanted);
}

}  // namespace sandbay::cache
