// TargetFence: who, of those that may log in to a target, may begin a session there now. A member
// of a group keeps all out but the group's one lead; see lead_claim.h.
//
// The server asks at a session's first login, after names and CHAP have been settled and before
// anything of an older session is touched: sessions of another owner that are there keep the
// newcomer out, whatever it proves; those of the same owner are ended, with their commands finished
// or aborted, before take() is asked. So nothing that an old lead sent lands after a new one has
// been let in, but for one thing: a write that a device below neither ends nor gives back within a
// second is given up, and may land later. Until it has ended the unit answers BUSY to writes over
// it (scsi/logical_unit.h), so that it overtakes none; reads may see either content meanwhile. A
// connection that joins a session has its TSIH, and is not asked.
//
// Everything is called on the server's home. Outlives the server.
#pragma once

#include <string>

#include "iscsi/pdu.h"
#include "runtime/task.h"

namespace sandbay::iscsi {

class TargetFence {
 public:
  struct Verdict {
    LoginStatus status = LoginStatus::kSuccess;
    std::string why;    // Where it is refused: for logs; half a sentence about the newcomer.
    std::string owner;  // Sessions of one owner succeed one another.
  };

  virtual ~TargetFence() = default;

  // What the login says in the key kLeadKey; empty: nothing. Changes nothing.
  virtual Verdict judge(std::string claim) const = 0;
  // Believed from now on, durably, when this ends well.
  virtual Task<Verdict> take(std::string claim) = 0;
  // Somebody was refused, for this reason; `who` names him and his address.
  virtual void refused(std::string who, std::string why) = 0;
};

}  // namespace sandbay::iscsi
