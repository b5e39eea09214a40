// Cancellation: tells operations in flight that nobody waits for their effect any more.
//
// One belongs to one task and one executor. cancel() is a request: an operation that registered a
// hook tries to stop, and completes with Error::kCancelled or with its normal result; it still
// completes, and its buffers stay owned by it until then.
#pragma once

#include <utility>

namespace sandbay {

class Cancellation {
 public:
  // Stands in the operation's frame; unlinks itself. `on_cancel` runs at most once, inside
  // cancel(), and must not suspend or destroy the hook's Cancellation.
  class Hook {
   public:
    Hook(Cancellation* cancellation, void (*on_cancel)(Hook& hook)) : on_cancel_(on_cancel) {
      if (cancellation == nullptr || cancellation->cancelled_) return;
      next_ = cancellation->first_;
      previous_ = &cancellation->first_;
      if (next_ != nullptr) next_->previous_ = &next_;
      cancellation->first_ = this;
    }
    ~Hook() { unlink(); }
    Hook(const Hook&) = delete;
    Hook& operator=(const Hook&) = delete;

   private:
    friend class Cancellation;
    void unlink() {
      if (previous_ == nullptr) return;
      *previous_ = next_;
      if (next_ != nullptr) next_->previous_ = previous_;
      previous_ = nullptr;
      next_ = nullptr;
    }
    void (*on_cancel_)(Hook& hook);
    Hook* next_ = nullptr;
    Hook** previous_ = nullptr;
  };

  Cancellation() = default;
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;
  ~Cancellation() {
    while (first_ != nullptr) first_->unlink();
  }

  bool cancelled() const noexcept { return cancelled_; }
  void cancel() {
    if (std::exchange(cancelled_, true)) return;
    while (first_ != nullptr) {
      Hook* hook = first_;
      hook->unlink();
      hook->on_cancel_(*hook);
    }
  }

 private:
  bool cancelled_ = false;
  Hook* first_ = nullptr;
};

}  // namespace sandbay
