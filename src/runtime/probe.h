// Probes: named fault points. Code that can be broken on command asks here; who decides is
// somebody else's business, and usually nobody does.
//
// An idle probe costs one predictable branch. A decider is installed for one executor, by RAII, on
// that executor; a probe asks the decider of the executor whose turn it is, so that there is
// no lock, nothing shared, and in a simulated world the same answer for the same seed.
//
//   if (Probe::armed()) [[unlikely]] {
//     const ProbeVerdict verdict = Probe::ask({.name = "nvram.append", .byte_count = n});
//     if (verdict.error != Error::kNone) co_return verdict.error;
//   }
//
// Names are `place.step` in lower case, as rules write them after `event=`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/clock.h"
#include "runtime/error.h"

namespace sandbay {

class Executor;

// The thing that passes a probe. Views are valid during the call only; what a place does not know
// stays empty.
struct ProbePoint {
  std::string_view name;             // "nvram.append", "meta.commit", "session.response"
  std::string_view object;           // Which one: a controller, an IQN, a file.
  std::uint64_t number = 0;          // Which one, where numbers say it: CID, LUN, tag.
  std::uint64_t first = 0;           // Where in the object: an LBA or a byte.
  std::uint64_t byte_count = 0;      // How much.
  std::span<const std::byte> bytes;  // The bytes themselves, to be looked at.
};

// What shall happen. By default: nothing, go on. A place obeys what it can express and says in its
// header which `action` numbers it knows.
struct ProbeVerdict {
  Error error = Error::kNone;  // Fail with this.
  Duration delay{};            // Wait so long first.
  std::uint32_t action = 0;    // A fault of the place's own; 0 is none.
  std::uint64_t argument = 0;  // For `action`.

  bool proceeds() const noexcept {
    return error == Error::kNone && delay == Duration::zero() && action == 0;
  }
};

class ProbeDecider {
 public:
  // On the executor for which it is installed. Must not suspend; may install and remove deciders.
  virtual ProbeVerdict decide(const ProbePoint& point) = 0;

 protected:
  ~ProbeDecider() = default;
};

class Probe {
 public:
  // Whether any executor of this thread has a decider.
  static bool armed() noexcept { return installed != 0; }
  // Asks the current executor's decider; proceeds where there is none. On no executor's turn
  // nobody is asked.
  static ProbeVerdict ask(const ProbePoint& point);

  // Makes `decider` the one of `executor` while it lives; made and destroyed on that executor's
  // thread. The newest of several answers.
  class Installation {
   public:
    Installation(Executor& executor, ProbeDecider& decider);
    ~Installation();
    Installation(const Installation&) = delete;
    Installation& operator=(const Installation&) = delete;

   private:
    friend class Probe;
    Executor& executor_;
    ProbeDecider& decider_;
    Installation* next_ = nullptr;
  };

 private:
  static constinit thread_local unsigned installed;
};

}  // namespace sandbay
