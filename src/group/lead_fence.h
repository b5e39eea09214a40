// LeadFence: a member's side of having one lead; see iscsi/lead_claim.h. What it keeps stands in
// the member's own metadata, and is there, durably, before a lead is let in.
//
// Executor 0.
#pragma once

#include <chrono>
#include <expected>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "group/event_log.h"
#include "iscsi/lead_claim.h"
#include "iscsi/target_fence.h"
#include "metadata/store.h"

namespace sandbay::group {

class LeadFence final : public iscsi::TargetFence {
 public:
  // How long a newcomer waits for the metadata. Then it is sent away, and so are those after it
  // until the disk has answered; nobody queues behind a disk that hangs.
  static constexpr Duration kStorePatience = std::chrono::seconds(3);

  // Both outlive it.
  LeadFence(metadata::Store& store, EventLog& events);
  ~LeadFence() override;

  // `forget`: the administrator says that whoever logs in next is the lead. Half a sentence says
  // why not.
  Task<std::expected<void, std::string>> load(bool forget);

  Verdict judge(std::string claim) const override;
  Task<Verdict> take(std::string claim) override;
  void refused(std::string who, std::string why) override;

  const std::optional<iscsi::LeadRecord>& kept() const noexcept { return book_->kept; }

 private:
  // Shared with a commit that nobody waits for any more.
  struct Book {
    std::optional<iscsi::LeadRecord> kept;
    bool storing = false;
    EventLog* events = nullptr;  // Null: the fence has gone.
  };
  static Task<Error> store(std::shared_ptr<Book> book, metadata::Store* store,
                           iscsi::LeadRecord record);

  metadata::Store& store_;
  EventLog& events_;
  std::shared_ptr<Book> book_;
  std::set<std::string> told_;  // Lately.
  std::uint64_t untold_ = 0;    // Refusals since the last that was told.
  TimePoint quiet_until_{};
};

// As text in the metadata.
std::string format_lead_record(const iscsi::LeadRecord& record);
std::optional<iscsi::LeadRecord> parse_lead_record(std::string_view text);

}  // namespace sandbay::group
