// LeadLedger: what the lead of a group has last claimed of one member, and what it claims next; see
// iscsi/lead_claim.h. It stands in the group's metadata, which are the lead's alone.
//
// The order is: store (acknowledged, proposed), propose, and count it as acknowledged. After a
// crash in between the same proposal is made again; whichever of the two the member keeps, it takes
// that. Every run of the daemon proposes an epoch of its own, and now and then a new token, so that
// whoever has an older state has nothing that counts.
//
// The metadata may be out of space for long, and a member must not be lost for that: a run that has
// proposed an epoch of its own proposes again what the member has, if no new token can be
// stored.
//
// Executor 0. One claim at a time is under way.
#pragma once

#include <expected>
#include <optional>
#include <set>
#include <string>

#include "iscsi/lead_claim.h"
#include "iscsi/remote_target.h"
#include "metadata/store.h"

namespace sandbay::group {

// The member that a claim is about. It is recognised by its target's name; the name that the file
// gives it tells apart members whose targets have the same name, and may change.
struct ClaimedMember {
  std::string name;
  std::string target;
  std::set<std::string> claimed;  // Keys of the claims to all members of the file.
};

class LeadLedger final : public iscsi::RemoteClaim {
 public:
  // The store outlives it. `lead` is this run's.
  LeadLedger(metadata::Store& store, ClaimedMember member, Uuid group, Uuid lead);

  static std::string key_of(const std::string& target, const std::string& name);

  // Once, or by itself when it is first needed. Half a sentence if the metadata cannot be read.
  Task<std::string> load();
  // After load(): what the file called the member before; empty: as it does now.
  const std::string& former_name() const noexcept { return former_name_; }

  Task<std::expected<std::string, std::string>> propose() override;
  std::string accepted() override;

  std::uint64_t epoch() const noexcept { return claim_.proven.epoch; }
  // What the member keeps is what an earlier run has proposed, and whoever has a copy of that.
  bool unfinished() const override { return !own_epoch_; }

 private:
  Task<std::string> find_key();

  metadata::Store& store_;
  ClaimedMember member_;
  std::string key_;
  std::string stored_at_;  // Another key, until the next proposal is stored; empty: at key_.
  std::string former_name_;
  iscsi::LeadClaim claim_;
  bool loaded_ = false;
  bool own_epoch_ = false;       // The member has had a proposal of this run,
  bool proposes_epoch_ = false;  // or what is under way is one.
};

}  // namespace sandbay::group
