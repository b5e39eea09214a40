// Claims and their record.
#include "group/lead_ledger.h"

#include <fmt/format.h>

namespace sandbay::group {

LeadLedger::LeadLedger(metadata::Store& store, std::string member, Uuid group, Uuid lead)
    : store_(store), key_("lead/" + std::move(member)) {
  claim_.group = group;
  claim_.lead = lead;
}

Task<std::string> LeadLedger::load() {
  const auto stored = co_await store_.get(key_);
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
  if (!loaded_) {
    const std::string wrong = co_await load();
    if (!wrong.empty()) co_return std::unexpected(wrong);
  }
  // What may have reached the member counts until its answer has come.
  if (claim_.proposed != claim_.proven) co_return iscsi::format_lead_claim(claim_);
  iscsi::LeadClaim next = claim_;
  next.proposed.epoch = claim_.proven.epoch + (own_epoch_ ? 0 : 1);
  next.proposed.token = make_uuid(Executor::current().random());
  metadata::Batch batch;
  batch.put(key_, iscsi::format_lead_claim(next));
  const Error error = co_await store_.commit(std::move(batch));
  if (error != Error::kNone) {
    co_return std::unexpected(fmt::format("the metadata cannot be written: {}", describe(error)));
  }
  claim_ = next;
  proposes_epoch_ = true;
  co_return iscsi::format_lead_claim(claim_);
}

std::string LeadLedger::accepted() {
  claim_.proven = claim_.proposed;
  own_epoch_ = own_epoch_ || proposes_epoch_;
  return iscsi::format_lead_claim(claim_);
}

}  // namespace sandbay::group
