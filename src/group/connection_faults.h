// ConnectionFaults: what fault rules at sessions, connections and links do to PDUs, answers and
// logins.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "fault/engine.h"
#include "fault/site.h"
#include "iscsi/interference.h"

namespace sandbay::group {

class ConnectionFaults final : public iscsi::Interferences {
 public:
  explicit ConnectionFaults(fault::FaultEngine& engine) : engine_(engine) {}

  std::unique_ptr<iscsi::PduInterference> of_connection(
      const iscsi::ConnectionFacts& facts) override;
  std::unique_ptr<iscsi::SessionInterference> of_session(
      const std::string& initiator_name) override;
  Attempt judge_attempt(const iscsi::AttemptFacts& facts) override;
  Login judge_login(const iscsi::LoginFacts& facts) override;

 private:
  fault::Site& site_of(const std::string& portal);

  fault::FaultEngine& engine_;
  std::map<std::string, std::shared_ptr<fault::Site>> portals_;  // Those with connections.
};

}  // namespace sandbay::group
