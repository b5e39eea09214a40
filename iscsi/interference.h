// PduInterference: somebody who loses, delays or damages PDUs of a connection, so that initiators
// and targets meet what networks and other implementations do.
//
// It belongs to one connection in full feature phase, is asked on its home for each PDU, received
// or to be sent, and must not suspend.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "iscsi/pdu.h"
#include "runtime/clock.h"

namespace sandbay::iscsi {

// How the connection could be told from others.
struct ConnectionFacts {
  std::uint16_t tsih = 0;
  std::uint16_t cid = 0;
  std::string initiator_name;
  std::string portal;  // Where it came to, as the server listens there.
};

class PduInterference {
 public:
  enum class Fate : std::uint8_t {
    kPass,
    kLose,          // As if it had been sent, or had not come.
    kHeaderDigest,  // Its header digest is wrong,
    kDataDigest,    // or that of its data.
    kClose,         // The connection ends before it,
    kReset,         // or is reset.
  };
  struct Verdict {
    Fate fate = Fate::kPass;
    Duration delay{};  // Before that; what is behind it on the connection waits as well.
  };
  // What a digest fault can strike.
  struct Digests {
    bool header = false;
    bool data = false;
  };

  // `quiet` is watched, and outlives this.
  explicit PduInterference(const bool& quiet) : quiet_(quiet) {}
  PduInterference(const PduInterference&) = delete;
  PduInterference& operator=(const PduInterference&) = delete;
  virtual ~PduInterference() = default;  // On any executor.

  // Whether it would change nothing now: then it need not be asked.
  bool quiet() const noexcept { return quiet_; }
  virtual Verdict judge(BhsView bhs, Digests digests) = 0;

 private:
  const bool& quiet_;
};

class PduInterferences {
 public:
  // On the connection's home.
  virtual std::unique_ptr<PduInterference> of_connection(const ConnectionFacts& facts) = 0;

 protected:
  ~PduInterferences() = default;
};

}  // namespace sandbay::iscsi
