// Claims and their record.
#include "group/lead_ledger.h"

#include <fmt/core.h>

namespace sandbay::group {

namespace {

constexpr std::size_t kMostOfTarget = 256;

}  // namespace

LeadLedger::LeadLedger(metadata::Store& store, ClaimedMember member, Uuid group, Uuid lead)
    : store_(store), member_(std::move(member)), key_(key_of(member_.target, member_.name)) {
  claim_.group = group;
  claim_.lead = lead;
}

std::string LeadLedger::key_of(const std::string& target, const std::string& name) {
  return fmt::format("lead/{}/{}", target, name);
}

// Where the claim is stored: under the member's name, under a name that no member of that target
// has any more, or as it was before claims had a target.
Task<std::string> LeadLedger::find_key() {
  const auto unreadable = [](Error error) {
    return fmt::format("the metadata cannot be read: {}", describe(error));
  };
  const std::string prefix = key_of(member_.target, "");
  const auto known = co_await store_.list(prefix, "", kMostOfTarget);
  if (!known.has_value()) co_return unreadable(known.error());
  std::vector<std::string> left;
  for (const auto& [key, value] : *known) {
    if (key == key_) co_return std::string();
    if (!member_.claimed.contains(key)) left.push_back(key);
  }
  if (left.size() == 1) {
    stored_at_ = left.front();
    former_name_ = stored_at_.substr(prefix.size());
    co_return std::string();
  }
  const std::string without_target = "lead/" + member_.name;
  const auto old = co_await store_.get(without_target);
  if (!old.has_value()) co_return unreadable(old.error());
  if (old->has_value()) stored_at_ = without_target;
  co_return std::string();
}

Task<std::string> LeadLedger::load() {
  if (loaded_) co_return std::string();
  const std::string wrong = co_await find_key();
  if (!wrong.empty()) co_return wrong;
  const auto stored = co_await store_.get(stored_at_.empty() ? key_ : stored_at_);
  if (!stored.has_value()) {
    co_return fmt::format("the metadata cannot be read: {}", describe(stored.error()));
  }
  const std::optional<std::string>& text = *stored;
  if (text.has_value()) {
    const auto claim = iscsi::parse_lead_claim(*text);
    if (!claim) co_return fmt::format("metadata {}: not a claim", key_);
    claim_.proven = claim->proven;
    claim_.proposed = claim->proposed;
  }
  loaded_ = true;
  co_return std::string();
}

Task<std::expected<std::string, std::string>> LeadLedger::propose() {
  const std::string wrong = co_await load();
  if (!wrong.empty()) co_return std::unexpected(wrong);
  // What may have reached the member counts until its answer has come.
  if (claim_.proposed != claim_.proven) co_return iscsi::format_lead_claim(claim_);
  iscsi::LeadClaim next = claim_;
  next.proposed.epoch = claim_.proven.epoch + (own_epoch_ ? 0 : 1);
  next.proposed.token = make_uuid(Executor::current().random());
  metadata::Batch batch;
  batch.put(key_, iscsi::format_lead_claim(next));
  if (!stored_at_.empty()) batch.erase(stored_at_);
  const Error error = co_await store_.commit(std::move(batch));
  // The proof is what the member has, as it was acknowledged to this run.
  if (error != Error::kNone && own_epoch_) co_return iscsi::format_lead_claim(claim_);
  if (error != Error::kNone) {
    co_return std::unexpected(fmt::format("the metadata cannot be written: {}", describe(error)));
  }
  claim_ = next;
  stored_at_.clear();
  proposes_epoch_ = true;
  co_return iscsi::format_lead_claim(claim_);
}

std::string LeadLedger::accepted() {
  claim_.proven = claim_.proposed;
  own_epoch_ = own_epoch_ || proposes_epoch_;
  return iscsi::format_lead_claim(claim_);
}

}  // namespace sandbay::group
