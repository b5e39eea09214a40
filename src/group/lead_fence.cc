// What a member keeps of its lead, and who is let in.
#include "group/lead_fence.h"

#include <fmt/core.h>

#include <cassert>
#include <utility>

#include "runtime/in_time.h"

namespace sandbay::group {

namespace {

constexpr std::string_view kKey = "lead";
constexpr std::string_view kOpen = "open";
// Between two events about the same refusal, and how many are told in that time.
constexpr Duration kBetweenEvents = std::chrono::minutes(1);
constexpr std::size_t kMostTold = 8;

}  // namespace

LeadFence::LeadFence(metadata::Store& store, EventLog& events)
    : store_(store), events_(events), book_(std::make_shared<Book>()) {
  book_->events = &events;
}

LeadFence::~LeadFence() { book_->events = nullptr; }

std::string format_lead_record(const iscsi::LeadRecord& record) {
  if (record.open) return std::string(kOpen);
  return iscsi::format_lead_claim(
      {.group = record.group, .proven = record.step, .proposed = record.step});
}

std::optional<iscsi::LeadRecord> parse_lead_record(std::string_view text) {
  if (text == kOpen) return iscsi::LeadRecord{.open = true};
  const auto claim = iscsi::parse_lead_claim(text);
  if (!claim) return std::nullopt;
  return iscsi::LeadRecord{.group = claim->group, .step = claim->proposed};
}

Task<std::expected<void, std::string>> LeadFence::load(bool forget) {
  const auto stored = co_await store_.get(std::string(kKey));
  if (!stored.has_value()) {
    co_return std::unexpected(
        fmt::format("the metadata cannot be read: {}", describe(stored.error())));
  }
  const std::optional<std::string>& text = *stored;
  if (text.has_value()) {
    book_->kept = parse_lead_record(*text);
    if (!book_->kept) co_return std::unexpected("metadata lead: not a record of a lead");
  }
  if (!forget) co_return std::expected<void, std::string>();
  metadata::Batch batch;
  batch.put(std::string(kKey), std::string(kOpen));
  const Error error = co_await store_.commit(std::move(batch));
  if (error != Error::kNone) {
    co_return std::unexpected(fmt::format("the metadata cannot be written: {}", describe(error)));
  }
  book_->kept = iscsi::LeadRecord{.open = true};
  events_.add({.severity = Severity::kWarning,
               .kind = "lead",
               .text = "the lead of this member is forgotten, as was asked for: the next that "
                       "logs in is believed, whatever state it has"});
  co_return std::expected<void, std::string>();
}

iscsi::TargetFence::Verdict LeadFence::judge(std::string claim) const {
  Verdict verdict{.status = iscsi::LoginStatus::kAuthorizationFailure};
  const auto parsed = iscsi::parse_lead_claim(claim);
  if (!parsed) {
    verdict.why = "it does not say which group it leads";
    return verdict;
  }
  verdict.owner = format_hex(parsed->lead);
  const iscsi::LeadVerdict judged = iscsi::judge_lead(book_->kept, *parsed);
  if (judged == iscsi::LeadVerdict::kAccepted) {
    verdict.status = iscsi::LoginStatus::kSuccess;
    return verdict;
  }
  verdict.why = std::string(describe(judged));
  const auto& kept = book_->kept;
  if (kept && !kept->open) {
    verdict.why +=
        fmt::format(" (group {}, epoch {}; here group {}, epoch {})", format_uuid(parsed->group),
                    parsed->proposed.epoch, format_uuid(kept->group), kept->step.epoch);
  }
  return verdict;
}

Task<iscsi::TargetFence::Verdict> LeadFence::take(std::string claim) {
  Verdict verdict = judge(claim);
  const auto parsed = iscsi::parse_lead_claim(claim);
  if (verdict.status != iscsi::LoginStatus::kSuccess || !parsed) co_return verdict;
  const iscsi::LeadRecord record{.group = parsed->group, .step = parsed->proposed};
  if (book_->kept == record) co_return verdict;
  Error error = Error::kTimedOut;
  if (!book_->storing) {
    const TimePoint deadline = Executor::current().now() + kStorePatience;
    error = co_await in_time(store(book_, &store_, record), deadline);
  }
  if (error == Error::kNone) co_return verdict;
  verdict.status = iscsi::LoginStatus::kServiceUnavailable;
  verdict.why = error == Error::kTimedOut
                    ? std::string("the disk of the metadata does not answer; it may try again")
                    : fmt::format("the metadata cannot be written: {}", describe(error));
  co_return verdict;
}

// A proposal counts from when it is stored, also if the lead was sent away before: then it proposes
// the same again.
Task<Error> LeadFence::store(std::shared_ptr<Book> book, metadata::Store* store,
                             iscsi::LeadRecord record) {
  assert(!book->storing);
  book->storing = true;
  metadata::Batch batch;
  batch.put(std::string(kKey), format_lead_record(record));
  const Error error = co_await store->commit(std::move(batch));
  book->storing = false;
  if (error != Error::kNone) co_return error;
  const auto& kept = book->kept;
  const bool new_epoch = !kept || kept->step.epoch != record.step.epoch;
  book->kept = record;
  if (new_epoch && book->events != nullptr) {
    book->events->add({.kind = "lead",
                       .text = fmt::format("group {} leads this member, in epoch {}",
                                           format_uuid(record.group), record.step.epoch)});
  }
  co_return Error::kNone;
}

void LeadFence::refused(std::string who, std::string why) {
  std::string text = fmt::format("{} is refused as lead: {}", who.substr(0, who.rfind(':')), why);
  const TimePoint now = Executor::current().now();
  if (now >= quiet_until_) {
    told_.clear();
    quiet_until_ = now + kBetweenEvents;
  }
  // Whoever calls himself otherwise each time floods nobody either.
  if (told_.contains(text) || told_.size() >= kMostTold) {
    ++untold_;
    return;
  }
  told_.insert(text);
  if (untold_ > 0) text += fmt::format(" ({} more were refused since the last report)", untold_);
  untold_ = 0;
  events_.add({.severity = Severity::kWarning, .kind = "lead", .text = std::move(text)});
}

}  // namespace sandbay::group
