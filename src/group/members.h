// Members: the arrays that the configuration makes present, whether a pool has them or not.
//
// The first is always there and local: what stands at the top of the file. Each local member has
// Hardware of its own: drives, NVRAM, cache, faults; what it keeps in the metadata stands under
// member/NAME/, and that of the first at the top. Names of drives and sets are unique in the group,
// so whoever has one of those need not know the member.
//
// Fault rules are the group's: one engine breaks the drives of all local members and the sets of
// all members, and a power cut takes all that is local.
#pragma once

#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "group/configuration.h"
#include "group/controller_cache.h"
#include "group/event_log.h"
#include "group/hardware.h"
#include "group/member.h"
#include "group/remote_member.h"
#include "metadata/store.h"
#include "runtime/start_refusal.h"

namespace sandbay::group {

class Members {
 public:
  // All outlive it.
  Members(Executor& home, const Configuration& configuration, metadata::Store& store,
          EventLog& events, Uuid group);
  ~Members();  // After stop().
  Members(const Members&) = delete;
  Members& operator=(const Members&) = delete;

  // See Hardware::start(); `places` likewise.
  Task<Started> start(ControllerCache::VolumePlaces places);
  // See Hardware::stop().
  Task<void> stop(TimePoint deadline, bool quiet);
  Task<void> settle(TimePoint deadline);
  void know_volumes(const ControllerCache::VolumePlaces& places);
  bool lost_writes() const noexcept { return lost_writes_; }
  void on_sets_changed(std::function<void()> callback);

  const std::vector<std::unique_ptr<Member>>& all() const noexcept { return members_; }
  // In the order of the file; the first is the one at its top.
  const std::vector<Hardware*>& local() const noexcept { return local_; }
  Hardware& first() const noexcept { return *local_.front(); }
  const std::vector<RemoteMember*>& remote() const noexcept { return remote_; }
  Member* find(const std::string& name) const;
  Member* with_set(const Uuid& set) const;
  // Whose hardware it is; null: nobody's.
  Hardware* hardware_of_set(const Uuid& set) const;
  Hardware* hardware_of_set(const std::string& set) const;
  Hardware* hardware_of_drive(const std::string& drive) const;

  // Sets, whoever has them. -----------------------------------------------------------------------
  std::optional<Uuid> find_set(const std::string& name) const;
  std::string name_of(const Uuid& set) const;
  BlockDevice* serving(const Uuid& set) const;
  std::string refusal(const Uuid& set) const;
  // Of local members alone; null: none has it.
  Door* door(const Uuid& set) const;
  // See Hardware; of a set that some member does not have all is used, and nothing is raised.
  std::uint64_t used_end(const Uuid& set) const;
  void raise_used_end(const Uuid& set, std::uint64_t end, metadata::Batch& batch);
  std::vector<DriveInfo> show_drives() const;
  std::vector<SetInfo> show_sets() const;
  // The files and devices of all local members.
  void list_claims(std::vector<Claim>& claims) const;
  bool has_cache() const;
  // What volumes on pools share for reading ahead; null: no member has a cache.
  cache::StreamBudget* streams() const;
  // Of all local members that have one.
  std::vector<cache::Cache*> caches() const;

 private:
  struct Local;

  std::vector<std::unique_ptr<Local>> parts_;  // Of all local ones but the first.
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<Hardware*> local_;
  std::vector<RemoteMember*> remote_;
  bool lost_writes_ = false;
};

}  // namespace sandbay::group
