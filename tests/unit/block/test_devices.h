// Layers for tests: devices that hang, fail, delay or record. They stand on any device, usually a
// MemoryDevice, and any test folder may use them.
//
// HungDevice holds requests until the test lets them go; FaultyDevice fails what its rules say;
// DelayDevice completes later, on the executor's clock and so in virtual time; RecordingDevice
// keeps the outline of every request that passed; SharingDevice keeps slices of what it answers;
// ReceivingDevice has memory of its own for the payloads of writes.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "block/layer.h"
#include "runtime/sync.h"

namespace sandbay::testing {

// The outline of a request: everything but its payload.
struct SeenRequest {
  Operation operation = Operation::kRead;
  Extent extent;
  bool force_unit_access = false;
  bool disable_page_out = false;
  Origin origin = Origin::kHost;
  std::uint64_t volume = 0;
};

inline SeenRequest outline(const Request& request) {
  return {.operation = request.operation,
          .extent = request.extent,
          .force_unit_access = request.force_unit_access,
          .disable_page_out = request.disable_page_out,
          .origin = request.origin,
          .volume = request.volume};
}

class RecordingDevice final : public Layer {
 public:
  using Layer::Layer;

  Task<Completion> submit(Request request) override {
    if (!quiet_) seen_.push_back(outline(request));
    return Layer::submit(std::move(request));
  }

  void be_quiet() { quiet_ = true; }  // Records nothing any more.
  void go_away(bool away) { away_ = away; }
  bool serves() const noexcept override { return !away_ && Layer::serves(); }
  const std::vector<SeenRequest>& seen() const noexcept { return seen_; }
  void clear() { seen_.clear(); }
  std::size_t count(Operation operation) const {
    return static_cast<std::size_t>(std::ranges::count(seen_, operation, &SeenRequest::operation));
  }

 private:
  bool quiet_ = false;
  bool away_ = false;
  std::vector<SeenRequest> seen_;
};

// Answers reads with slices of which it keeps others, as a cache does, once it is told to.
class SharingDevice final : public Layer {
 public:
  using Layer::Layer;

  void share() { sharing_ = true; }
  bool has_answered() const noexcept { return !kept_.empty(); }
  // Of the last answer: nobody else has slices of it any more.
  bool alone() const noexcept { return kept_.unique(); }
  void forget() { kept_.clear(); }

 private:
  Task<Completion> read(Request request) override {
    Completion completion = co_await Layer::read(std::move(request));
    if (sharing_) kept_ = completion.data.share();
    co_return completion;
  }

  bool sharing_ = false;
  BufferList kept_;
};

// Once open, has memory in which payloads are best received, as a cache over NVRAM has, and counts
// what came there and what did not. It gives away half of it.
class ReceivingDevice final : public Layer {
 public:
  using Layer::Layer;

  // On the home executor; close() likewise, when nothing of it is in use.
  void open(std::size_t byte_count) { pool_ = std::make_unique<BufferPool>(home(), byte_count); }
  void close() { pool_.reset(); }
  const BufferPool& pool() const { return *pool_; }
  std::uint64_t here_bytes() const noexcept { return here_bytes_; }
  std::uint64_t elsewhere_bytes() const noexcept { return elsewhere_bytes_; }

  BufferList write_buffers(std::size_t byte_count) override {
    assert(Executor::current_or_null() == &home());
    if (pool_ == nullptr || pool_->used_bytes() + byte_count > pool_->limit_bytes() / 2) return {};
    return pool_->try_allocate(byte_count);
  }

 private:
  Task<Completion> write(Request request) override {
    for (std::size_t i = 0; i < request.data.slice_count(); ++i) {
      const bool here = pool_ != nullptr && pool_->owns(request.data[i]);
      (here ? here_bytes_ : elsewhere_bytes_) += request.data[i].byte_count();
    }
    return Layer::write(std::move(request));
  }

  std::unique_ptr<BufferPool> pool_;
  std::uint64_t here_bytes_ = 0;
  std::uint64_t elsewhere_bytes_ = 0;
};

// While hung, requests stop here; release() sends all of them on and lets later ones pass. With
// obey_cancellation(true) a held request ends with kCancelled when its cancellation fires, without
// reaching the device below; by default it ignores it, as a broken drive does.
class HungDevice final : public Layer {
 public:
  using Layer::Layer;

  void hang() { hung_ = true; }
  void hang_only(Operation operation) {
    hung_ = true;
    only_ = operation;
  }
  void obey_cancellation(bool obey) { obey_cancellation_ = obey; }
  void release() {
    hung_ = false;
    only_.reset();
    changed_.notify_all();
  }
  // Lets exactly the requests held now go on; later ones are held again.
  void release_held() {
    ++generation_;
    changed_.notify_all();
  }
  std::size_t held() const noexcept { return held_; }  // Requests that stand here now.

  Task<Completion> submit(Request request) override {
    if (!concerns(request.operation)) return Layer::submit(std::move(request));
    return hold(std::move(request));
  }

 private:
  struct Wake : Cancellation::Hook {
    Wake(Cancellation* cancellation, Condition& to_notify)
        : Hook(cancellation, [](Hook& hook) { static_cast<Wake&>(hook).changed.notify_all(); }),
          changed(to_notify) {}
    Condition& changed;
  };

  bool concerns(Operation operation) const {
    return hung_ && (!only_.has_value() || *only_ == operation);
  }

  Task<Completion> hold(Request request) {
    const std::uint64_t arrived = generation_;
    ++held_;
    {
      Wake wake(request.cancellation, changed_);
      while (concerns(request.operation) && generation_ == arrived) {
        if (gives_up(request)) break;
        co_await changed_.wait();
      }
    }
    --held_;
    if (gives_up(request)) {
      co_return Completion{.error = Error::kCancelled, .data = std::move(request.data)};
    }
    co_return co_await Layer::submit(std::move(request));
  }

  bool gives_up(const Request& request) const {
    return obey_cancellation_ && request.cancellation != nullptr &&
           request.cancellation->cancelled();
  }

  bool hung_ = false;
  bool obey_cancellation_ = false;
  std::optional<Operation> only_;
  std::uint64_t generation_ = 0;
  std::size_t held_ = 0;
  Condition changed_;
};

// A device that failed may leave anything in a buffer: here, neither old nor new bytes.
inline void spoil(BufferList& data) {
  for (std::size_t i = 0; i < data.slice_count(); ++i) {
    std::ranges::fill(data[i].bytes(), std::byte{0xBD});
  }
}

// Fails requests that match a rule; the first matching rule decides. A medium error reports the
// first block of the request that lies in the rule's extent. A read that fails spoils its buffer.
class FaultyDevice final : public Layer {
 public:
  using Layer::Layer;

  struct Rule {
    std::optional<Operation> operation;  // Any, if not set.
    Extent extent{.first = 0, .block_count = ~std::uint64_t{0}};
    Error error = Error::kHardware;
    std::uint64_t skip = 0;                   // Matching requests that pass first.
    std::uint64_t times = ~std::uint64_t{0};  // How often the rule strikes afterwards.
    // Lets the request take effect and only reports the error, as when an answer is lost.
    bool after_effect = false;
  };

  void fail(Rule rule) { rules_.push_back(rule); }
  void clear() { rules_.clear(); }
  std::uint64_t struck() const noexcept { return struck_; }
  void set_health(Health health) { health_ = health; }
  Health health() const noexcept override { return health_.value_or(Layer::health()); }

  Task<Completion> submit(Request request) override {
    for (Rule& rule : rules_) {
      if (!matches(rule, request)) continue;
      if (rule.skip > 0) {
        --rule.skip;
        continue;
      }
      if (rule.times == 0) continue;
      --rule.times;
      ++struck_;
      return strike(rule, std::move(request));
    }
    return Layer::submit(std::move(request));
  }

 private:
  static bool matches(const Rule& rule, const Request& request) {
    if (rule.operation.has_value() && *rule.operation != request.operation) return false;
    // A flush concerns every block.
    return request.operation == Operation::kFlush || rule.extent.overlaps(request.extent);
  }

  Task<Completion> strike(Rule rule, Request request) {
    const Lba first_bad = std::max(rule.extent.first, request.extent.first);
    if (!rule.after_effect) {
      if (request.operation == Operation::kRead) spoil(request.data);
      co_return Completion{
          .error = rule.error, .first_bad_lba = first_bad, .data = std::move(request.data)};
    }
    Completion completion = co_await Layer::submit(std::move(request));
    completion.error = rule.error;
    completion.first_bad_lba = first_bad;
    co_return completion;
  }

  std::vector<Rule> rules_;
  std::uint64_t struck_ = 0;
  std::optional<Health> health_;
};

// Every request waits between `least` and `most`, drawn from the executor's generator, before it
// goes on; requests overtake one another.
class DelayDevice final : public Layer {
 public:
  DelayDevice(BlockDevice& below, Duration least, Duration most)
      : Layer(below), least_(least), most_(most) {
    assert(least >= Duration::zero() && least <= most);
  }

  Task<Completion> submit(Request request) override {
    const auto range = static_cast<std::uint64_t>((most_ - least_).count());
    const auto extra = static_cast<std::int64_t>(home().random().between(0, range));
    co_await home().sleep_for(least_ + Duration(extra));
    co_return co_await Layer::submit(std::move(request));
  }

 private:
  Duration least_;
  Duration most_;
};

}  // namespace sandbay::testing
