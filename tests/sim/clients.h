// Clients: what uses a disk in a simulation: writes, reads and flushes at random through an
// initiator's session, each checked against the reference model.
#pragma once

#include <cstdint>
#include <string>

#include "iscsi/initiator.h"
#include "reference_disk.h"
#include "runtime/random.h"
#include "runtime/sync.h"

namespace sandbay::simtest {

class Clients {
 public:
  Clients(std::uint64_t seed, std::uint64_t block_count, std::size_t block_bytes)
      : random_(seed * 7919 + 1), model_(block_count, block_bytes) {}

  Random& random() { return random_; }
  ReferenceDisk& model() { return model_; }

  // The first thing that went wrong counts.
  void complain(std::string what) {
    if (wrong_.empty()) wrong_ = std::move(what);
  }
  bool failed() const { return !wrong_.empty(); }
  const std::string& wrong() const { return wrong_; }

  // Fault rules are about: commands may end with any error, and are given up after this time. Data
  // that come are right all the same.
  void bear_faults(Duration timeout) { timeout_ = timeout; }
  void expect_no_faults() { timeout_ = Duration{}; }
  // Writes that ended without acknowledgement.
  std::uint64_t unacknowledged() const { return unacknowledged_; }

  // One logical request, repeated while there are unit attentions or a full task set. `aborts` says
  // that task management is about: commands may end as cancelled then.
  Task<void> write_once(iscsi::InitiatorSession& session, bool aborts);
  Task<void> read_once(iscsi::InitiatorSession& session, bool aborts);
  Task<void> flush_once(iscsi::InitiatorSession& session, bool aborts);
  // A mix of the three, `count` times.
  Task<void> client(iscsi::InitiatorSession& session, std::uint32_t count, bool aborts, Gate& gate);
  Task<void> read_everything(iscsi::InitiatorSession& session);

 private:
  Task<iscsi::InitiatorSession::Reply> ask(iscsi::InitiatorSession& session,
                                           std::array<std::byte, 16> cdb, BufferList out,
                                           std::size_t in_bytes);
  Task<void> read_blocks(iscsi::InitiatorSession& session, std::uint64_t first, std::uint64_t count,
                         bool aborts);

  // Whether a command may end like this.
  bool is_borne(const iscsi::ScsiResult& result, bool aborts) const;

  Random random_;
  ReferenceDisk model_;
  std::string wrong_;
  Duration timeout_{};  // 0: there are no faults.
  std::uint64_t unacknowledged_ = 0;
};

}  // namespace sandbay::simtest
