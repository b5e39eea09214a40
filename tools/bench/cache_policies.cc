// Hit ratios of the cache's eviction policy against LRU and ARC (Megiddo and Modha, FAST 2003) on
// generated traces, each policy with the same room. Lines are of one size.
//
// Traces: Zipf (popularity by rank, exponent 0.9), the same between scans of cold data, and one
// like OLTP: skewed pages that are used several times in a row, an index that is always hot, a log
// that is written once and read never again, and a table scan now and then.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/eviction.h"
#include "runtime/random.h"

namespace sandbay::cache {
namespace {

constexpr std::uint32_t kLine = 64 * 1024;
using Trace = std::vector<std::uint64_t>;

// Traces ----------------------------------------------------------------------------------------

class Zipf {
 public:
  Zipf(std::size_t count, double exponent) : cumulative_(count) {
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) {
      sum += 1 / std::pow(static_cast<double>(i + 1), exponent);
      cumulative_[i] = sum;
    }
  }
  // Ranks are scattered over the keys, so that neighbours are not alike.
  std::uint64_t next(Random& random) const {
    const double at = random.unit() * cumulative_.back();
    const auto rank = std::ranges::lower_bound(cumulative_, at) - cumulative_.begin();
    return static_cast<std::uint64_t>(rank) * 2654435761U % cumulative_.size();
  }

 private:
  std::vector<double> cumulative_;
};

Trace zipf_trace(std::size_t keys, std::size_t length) {
  Random random(1);
  const Zipf zipf(keys, 0.9);
  Trace trace;
  while (trace.size() < length) trace.push_back(zipf.next(random));
  return trace;
}

Trace scan_trace(std::size_t keys, std::size_t length) {
  Random random(2);
  const Zipf zipf(keys, 0.9);
  Trace trace;
  std::uint64_t cold = keys;
  while (trace.size() < length) {
    for (std::size_t i = 0; i < keys / 4; ++i) trace.push_back(zipf.next(random));
    for (std::size_t i = 0; i < keys / 5; ++i) trace.push_back(cold++);
  }
  return trace;
}

Trace oltp_trace(std::size_t keys, std::size_t length) {
  Random random(3);
  const Zipf zipf(keys, 1.0);
  const std::uint64_t index = keys;
  const std::size_t index_keys = keys / 200;
  std::uint64_t log = 2 * keys;
  Trace trace;
  std::size_t until_scan = length / 8;
  while (trace.size() < length) {
    if (trace.size() > until_scan) {
      until_scan += length / 8;
      for (std::size_t i = 0; i < keys / 3; ++i) trace.push_back(i);
    }
    trace.push_back(index + random.below(index_keys));
    const std::uint64_t page = zipf.next(random);
    for (std::uint64_t use = 0; use < 1 + random.below(3); ++use) trace.push_back(page);
    if (random.chance(0.3)) trace.push_back(log++);
  }
  return trace;
}

// Policies --------------------------------------------------------------------------------------

class Policy {
 public:
  virtual ~Policy() = default;
  virtual bool use(std::uint64_t key) = 0;  // Whether it was there.
};

class Ours final : public Policy {
 public:
  explicit Ours(std::size_t capacity) : capacity_(capacity), eviction_(capacity * kLine) {}
  ~Ours() override {
    while (eviction_.take_victim() != nullptr) {
    }
  }
  bool use(std::uint64_t key) override {
    if (const auto found = lines_.find(key); found != lines_.end()) {
      eviction_.hit(*found->second);
      return true;
    }
    if (lines_.size() >= capacity_) lines_.erase(eviction_.take_victim()->key);
    auto line = std::make_unique<Evictable>();
    line->key = key;
    line->bytes = kLine;
    eviction_.insert(*line, Hint::kNormal);
    lines_.emplace(key, std::move(line));
    return false;
  }

 private:
  std::size_t capacity_;
  Eviction eviction_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Evictable>> lines_;
};

// Keys in order of use, the newest in front.
class Queue {
 public:
  std::size_t size() const { return keys_.size(); }
  bool has(std::uint64_t key) const { return places_.contains(key); }
  void push(std::uint64_t key) {
    keys_.push_front(key);
    places_[key] = keys_.begin();
  }
  void erase(std::uint64_t key) {
    keys_.erase(places_.at(key));
    places_.erase(key);
  }
  std::uint64_t pop() {
    const std::uint64_t key = keys_.back();
    erase(key);
    return key;
  }

 private:
  std::list<std::uint64_t> keys_;
  std::unordered_map<std::uint64_t, std::list<std::uint64_t>::iterator> places_;
};

class Lru final : public Policy {
 public:
  explicit Lru(std::size_t capacity) : capacity_(capacity) {}
  bool use(std::uint64_t key) override {
    const bool there = queue_.has(key);
    if (there) {
      queue_.erase(key);
    } else if (queue_.size() >= capacity_) {
      queue_.pop();
    }
    queue_.push(key);
    return there;
  }

 private:
  std::size_t capacity_;
  Queue queue_;
};

// The paper's figure 4: t1, t2 hold lines, b1, b2 the keys of those that went from them.
class Arc final : public Policy {
 public:
  explicit Arc(std::size_t capacity) : capacity_(capacity) {}
  bool use(std::uint64_t key) override {
    if (t1_.has(key) || t2_.has(key)) {
      (t1_.has(key) ? t1_ : t2_).erase(key);
      t2_.push(key);
      return true;
    }
    if (b1_.has(key)) {
      target_ = std::min(capacity_, target_ + std::max<std::size_t>(1, b2_.size() / b1_.size()));
      replace(false);
      b1_.erase(key);
      t2_.push(key);
      return false;
    }
    if (b2_.has(key)) {
      const std::size_t less = std::max<std::size_t>(1, b1_.size() / b2_.size());
      target_ = target_ > less ? target_ - less : 0;
      replace(true);
      b2_.erase(key);
      t2_.push(key);
      return false;
    }
    make_room();
    t1_.push(key);
    return false;
  }

 private:
  void make_room() {
    const std::size_t total = t1_.size() + t2_.size() + b1_.size() + b2_.size();
    if (t1_.size() + b1_.size() == capacity_) {
      if (t1_.size() < capacity_) {
        b1_.pop();
        replace(false);
      } else {
        t1_.pop();
      }
    } else if (total >= capacity_) {
      if (total == 2 * capacity_) b2_.pop();
      replace(false);
    }
  }
  void replace(bool in_b2) {
    if (t1_.size() + t2_.size() < capacity_) return;
    const bool from_t1 = t1_.size() > 0 && (t1_.size() > target_ ||
                                            (in_b2 && t1_.size() == target_) || t2_.size() == 0);
    if (from_t1) {
      b1_.push(t1_.pop());
    } else {
      b2_.push(t2_.pop());
    }
  }

  std::size_t capacity_;
  std::size_t target_ = 0;
  Queue t1_, t2_, b1_, b2_;
};

// The first tenth fills the cache and is not counted.
double hit_ratio(Policy& policy, const Trace& trace) {
  std::size_t hits = 0;
  const std::size_t warm = trace.size() / 10;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    const bool hit = policy.use(trace[i]);
    hits += hit && i >= warm ? 1 : 0;
  }
  return static_cast<double>(hits) / static_cast<double>(trace.size() - warm);
}

void run() {
  constexpr std::size_t kKeys = 100000;
  constexpr std::size_t kLength = 1500000;
  struct Named {
    const char* name;
    std::function<Trace(std::size_t, std::size_t)> make;
  };
  const Named traces[] = {
      {"zipf", zipf_trace}, {"scans and zipf", scan_trace}, {"oltp", oltp_trace}};
  fmt::print("{:<16} {:>8} {:>9} {:>9} {:>9}\n", "trace", "lines", "s3-fifo", "lru", "arc");
  for (const Named& named : traces) {
    const Trace trace = named.make(kKeys, kLength);
    for (const std::size_t capacity : {kKeys / 100, kKeys / 20, kKeys / 10, kKeys / 4}) {
      Ours ours(capacity);
      Lru lru(capacity);
      Arc arc(capacity);
      fmt::print("{:<16} {:>8} {:>8.1f}% {:>8.1f}% {:>8.1f}%\n", named.name, capacity,
                 100 * hit_ratio(ours, trace), 100 * hit_ratio(lru, trace),
                 100 * hit_ratio(arc, trace));
    }
  }
}

}  // namespace
}  // namespace sandbay::cache

int main() { sandbay::cache::run(); }
