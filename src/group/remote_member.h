// RemoteMember: a member that another daemon runs on another host. Its sets are the logical units
// of that daemon's target, over one session of our initiator; see iscsi/remote_target.h.
//
// A set is known from the first time that it is seen, also while it is away; what was seen is kept
// in the metadata. Its device stays when the member goes, and answers kNotReady meanwhile.
//
// Executor 0.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fault/engine.h"
#include "fault/fault_layer.h"
#include "group/connection_faults.h"
#include "group/event_log.h"
#include "group/lead_ledger.h"
#include "group/member.h"
#include "group/remote_configuration.h"
#include "iscsi/remote_target.h"
#include "metadata/store.h"
#include "runtime/sync.h"

namespace sandbay::group {

class RemoteMember final : public Member {
 public:
  // Both outlive it. `lead` is this run's; `claimed`: see ClaimedMember.
  RemoteMember(Executor& home, RemoteMemberConfiguration configuration, metadata::Store& store,
               EventLog& events, Uuid group, Uuid lead, std::set<std::string> claimed);
  ~RemoteMember() override;  // After stop().

  // How long a start waits for members: not all of their volumes should be away for a moment.
  static constexpr Duration kStartPatience = std::chrono::seconds(3);

  // Begins to look for it. Only metadata that cannot be read are an error: half a sentence. The
  // engine outlives it, and breaks it; null: nobody does.
  Task<std::string> start(fault::FaultEngine* engine = nullptr);
  // Ends when it is there, or at the deadline; one that is not comes later.
  Task<void> arrive(TimePoint deadline);
  Task<void> stop();

  std::string place() const override;
  std::string absence() const override;
  std::vector<MemberSet> sets() const override;
  BlockDevice* serving(const Uuid& set) const override;
  std::string refusal(const Uuid& set) const override;
  std::string name_of(const Uuid& set) const override;
  std::optional<Uuid> find_set(const std::string& name) const override;
  // A pool's map does not name a set of which it is not known whose it is.
  void note_use(const Uuid& set, metadata::Batch& batch) override;
  void on_sets_changed(std::function<void()> callback) override {
    sets_changed_ = std::move(callback);
  }

  const iscsi::RemoteTarget& target() const noexcept { return target_; }
  std::uint64_t epoch() const noexcept { return ledger_.epoch(); }

 private:
  struct Known {
    MemberSet set;
    bool stored = false;
  };
  static iscsi::RemoteTargetOptions options_of(const RemoteMemberConfiguration& configuration,
                                               const Uuid& group, LeadLedger& ledger);
  iscsi::RemoteUnit* unit_of(const Uuid& set) const;
  void make_breakable();
  void learn();
  std::string free_name(const Uuid& set, std::string wanted) const;
  Task<std::string> load();
  Task<std::string> load_known(std::string name);
  Task<void> keep_known();
  Task<void> work();

  Executor& home_;
  RemoteMemberConfiguration configuration_;
  metadata::Store& store_;
  EventLog& events_;
  LeadLedger ledger_;
  iscsi::RemoteTarget target_;
  std::map<Uuid, Known> known_;
  fault::FaultEngine* engine_ = nullptr;
  std::unique_ptr<ConnectionFaults> link_faults_;  // Where there is an engine.
  std::map<Uuid, std::unique_ptr<fault::FaultLayer>>
      faults_;  // On units, where there is an engine.
  std::function<void()> sets_changed_;
  Condition wake_;
  bool stopping_ = false;
  bool outdone_ = false;  // The member has said that another one leads it.
  Gate gate_;
};

}  // namespace sandbay::group
