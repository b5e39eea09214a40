// LeadLedger: what the lead of a group has last claimed of one member, and what it claims next; see
// iscsi/lead_claim.h. It stands in the group's metadata, which are the lead's alone.
//
// The order is: store (acknowledged, proposed), propose, and count it as acknowledged. After a
// crash in between the same proposal is made again; whichever of the two the member keeps, it takes
// that. Every run of the daemon proposes an epoch of its own, and now and then a new token, so that
// whoever has an older state has nothing that counts.
//
// Executor 0. One claim at a time is under way.
#pragma once

#include <expected>
#include <optional>
#include <string>

#include "iscsi/lead_claim.h"
#include "iscsi/remote_target.h"
#include "metadata/store.h"

namespace sandbay::group {

class LeadLedger final : public iscsi::RemoteClaim {
 public:
  // The store outlives it. `lead` is this run's.
  LeadLedger(metadata::Store& store, std::string member, Uuid group, Uuid lead);

  Task<std::expected<std::string, std::string>> propose() override;
  std::string accepted() override;

  std::uint64_t epoch() const noexcept { return claim_.proven.epoch; }
  // What the member keeps is what an earlier run has proposed, and whoever has a copy of that.
  bool unfinished() const override { return !own_epoch_; }

 private:
  Task<std::string> load();

  metadata::Store& store_;
  std::string key_;
  iscsi::LeadClaim claim_;
  bool loaded_ = false;
  bool own_epoch_ = false;       // The member has had a proposal of this run,
  bool proposes_epoch_ = false;  // or what is under way is one.
};

}  // namespace sandbay::group
