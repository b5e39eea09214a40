// TransferBudget: the memory of one session's transfers in one direction, by connection.
//
// A transfer claims a piece before memory is promised or allocated for it, and gives the piece back
// when the data have been sent, or when the device server is done with them. A connection holds at
// most its share: a sixteenth of the pool, and less where the pool is used up. So a peer that asks
// for much and then neither reads nor sends, or a unit that hangs, leaves room to everybody else;
// and a connection that is stuck leaves room to its siblings, for a session may hold twice a share.
// A connection that holds nothing always gets a piece.
//
// Claims of one connection are served in order. One exception keeps ordered commands from waiting
// for those behind them: while the share is used up, the oldest urgent claim, without whose data
// the device server cannot go on, is served beyond the share, one at a time.
//
// It lives on the session's home. A piece that can be had at once costs no allocation.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "runtime/buffer.h"

namespace sandbay::iscsi {

class TransferBudget {
 public:
  // A transfer's place in the queue; the transfer owns it.
  struct Claim {
    void (*granted)(Claim& claim) = nullptr;  // Called when a claim that waited gets its piece.
    void* owner = nullptr;
    std::size_t byte_count = 0;
    bool waiting = false;
    bool urgent = false;
    bool beyond_share = false;  // It holds the exception.
  };
  // The pieces of one connection.
  struct Part {
    std::size_t held = 0;
    bool in_pool = true;  // Its data come out of the pool that this budget knows.
    bool exception = false;
    std::deque<Claim*> waiting;
  };

  explicit TransferBudget(const BufferPool& pool) noexcept;
  ~TransferBudget();
  TransferBudget(const TransferBudget&) = delete;
  TransferBudget& operator=(const TransferBudget&) = delete;

  void add(Part& part) { parts_.push_back(&part); }
  void remove(Part& part);  // It holds nothing, and nothing waits.

  // False: the claim waits, and `granted` follows unless it is withdrawn.
  bool take(Part& part, Claim& claim, std::size_t byte_count);
  void give(Part& part, Claim& claim, std::size_t byte_count);
  void withdraw(Part& part, Claim& claim);
  void make_urgent(Part& part, Claim& claim);

  std::size_t held() const noexcept { return held_; }

 private:
  bool fits(const Part& part, std::size_t byte_count) const noexcept;
  bool serve_one(Part& part);
  void serve();

  const BufferPool& pool_;
  std::size_t share_;
  std::size_t held_ = 0;
  std::size_t waiting_ = 0;
  std::size_t next_part_ = 0;  // Parts take turns.
  bool serving_ = false;
  std::vector<Part*> parts_;
};

}  // namespace sandbay::iscsi
