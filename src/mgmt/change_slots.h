// ChangeSlots: how many changes may be under way at a time, so that changes that wait for each
// other or for hardware leave threads for readers. Faults and sessions have slots of their own,
// since to clear a fault or to drop a session may end the wait.
#pragma once

#include <algorithm>
#include <atomic>
#include <optional>
#include <string_view>
#include <utility>

namespace sandbay::mgmt {

class ChangeSlots {
 public:
  // Half of the threads are for changes, a quarter for those of faults and sessions.
  explicit ChangeSlots(unsigned threads)
      : free_{static_cast<int>(std::max(1U, threads / 2)),
              static_cast<int>(std::max(1U, threads / 4))} {}
  ChangeSlots(const ChangeSlots&) = delete;
  ChangeSlots& operator=(const ChangeSlots&) = delete;

  class Hold {
   public:
    explicit Hold(std::atomic<int>& free) noexcept : free_(&free) {}
    Hold(Hold&& other) noexcept : free_(std::exchange(other.free_, nullptr)) {}
    Hold& operator=(Hold&&) = delete;
    ~Hold() {
      if (free_ != nullptr) ++*free_;
    }

   private:
    std::atomic<int>* free_;
  };

  // For a request that changes something; nothing if no slot of its kind is free. From any thread.
  std::optional<Hold> enter(std::string_view path) noexcept {
    std::atomic<int>& free = free_[is_way_out(path) ? 1 : 0];
    if (free.fetch_sub(1) > 0) return Hold(free);
    ++free;
    return std::nullopt;
  }

 private:
  static bool is_way_out(std::string_view path) noexcept {
    return path.starts_with("/api/v1/fault") || path.starts_with("/api/v1/sessions");
  }

  std::atomic<int> free_[2];
};

}  // namespace sandbay::mgmt
