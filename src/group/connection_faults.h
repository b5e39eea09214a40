// ConnectionFaults: what fault rules at sessions, connections and links do to PDUs.
#pragma once

#include <memory>

#include "fault/engine.h"
#include "iscsi/interference.h"

namespace sandbay::group {

class ConnectionFaults final : public iscsi::PduInterferences {
 public:
  explicit ConnectionFaults(fault::FaultEngine& engine) : engine_(engine) {}

  std::unique_ptr<iscsi::PduInterference> of_connection(
      const iscsi::ConnectionFacts& facts) override;

 private:
  fault::FaultEngine& engine_;
};

}  // namespace sandbay::group
