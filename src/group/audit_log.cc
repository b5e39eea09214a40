// Two lists in the metadata: changes that have begun, and changes that have ended.
#include "group/audit_log.h"

#include <fmt/core.h>

#include <algorithm>

#include "group/kept_log_functions.h"
#include "group/log.h"
#include "group/record_json.h"
#include "runtime/printable.h"

namespace sandbay::group {

using nlohmann::json;

namespace {

constexpr Duration kBeginPatience = std::chrono::seconds(1);
constexpr std::string_view kUnknown =
    "the daemon ended before this request had; whether it was done is unknown";

std::string begun_key(std::uint64_t number) {
  return fmt::format("{}{:016x}", kBegunPrefix, number);
}

}  // namespace

struct AuditLog::Beginning {
  std::string key;
  std::string value;
  bool kept = false;
  Event ended;
};

AuditLog::AuditLog(std::size_t most_entries)
    : log_({.prefix = kAuditPrefix,
            .name = "audited changes",
            .key = audit_key,
            .encode = encode,
            .decode = decode_audit,
            .sharer = [](const AuditEntry& entry) { return entry.caller; },
            .replaced = [](const AuditEntry& entry) { return entry.begun; }},
           most_entries) {}

Task<Error> AuditLog::open(metadata::Store& store) {
  Error error = co_await log_.open(store);
  if (error == Error::kNone) error = co_await add_unfinished(&store);
  store_ = &store;
  co_return error;
}

Task<Error> AuditLog::add_unfinished(metadata::Store* store) {
  const auto all = co_await metadata::list_all(*store, std::string(kBegunPrefix));
  if (!all) co_return all.error();
  for (const auto& [key, value] : *all) {
    auto entry = decode_audit(value);
    if (!entry || begun_key(entry->number) != key) {
      log_warning("metadata {}: left out", key);
      continue;
    }
    begun_ = std::max(begun_, entry->number);
    entry->refusal = kUnknown;
    entry->begun = key;
    log_.add(std::move(*entry));
  }
  co_return Error::kNone;
}

Task<void> AuditLog::close() {
  co_await gate_.close();
  co_await log_.close();
  store_ = nullptr;
}

Task<std::string> AuditLog::begin(AuditEntry entry) {
  entry.time = wall_time();
  log_info("audit: {}", audit_line(entry));
  if (store_ == nullptr || !gate_.enter()) co_return std::string();
  entry.number = ++begun_;
  auto beginning = std::make_shared<Beginning>();
  beginning->key = begun_key(entry.number);
  beginning->value = encode(entry);
  spawn(keep(this, beginning));
  const TimePoint deadline = Executor::current().now() + kBeginPatience;
  const bool ended = co_await beginning->ended.wait_until(deadline);
  // A record that is still on its way to the store is erased after it.
  co_return !ended || beginning->kept ? beginning->key : std::string();
}

Task<void> AuditLog::keep(AuditLog* log, std::shared_ptr<Beginning> beginning) {
  metadata::Batch batch;
  batch.put(beginning->key, beginning->value);
  const Error error = co_await log->store_->commit(std::move(batch));
  if (error != Error::kNone) {
    log_error(
        "audit: a change that begins is only in this log: the metadata cannot be written: "
        "{}",
        describe(error));
  }
  beginning->kept = error == Error::kNone;
  beginning->ended.set();
  log->gate_.leave();
}

void AuditLog::add(AuditEntry entry) {
  entry.time = wall_time();
  log_info("audit: {}", audit_line(entry));
  log_.add(std::move(entry));
}

std::string audit_line(const AuditEntry& entry) {
  const std::string text = fmt::format(
      "{} at {} {} {}: {} {}{}{}", entry.caller.empty() ? "unknown" : entry.caller, entry.address,
      entry.status == 0 ? "begins" : fmt::format("ended with {}", entry.status), entry.operation,
      entry.target, entry.request, entry.refusal.empty() ? "" : ": ", entry.refusal);
  return printable(text);
}

std::string audit_key(std::uint64_t number) {
  return fmt::format("{}{:016x}", kAuditPrefix, number);
}

std::string encode(const AuditEntry& entry) {
  return to_text({{"format", kRecordFormat},
                  {"number", entry.number},
                  {"time", entry.time.time_since_epoch().count()},
                  {"caller", entry.caller},
                  {"address", entry.address},
                  {"operation", entry.operation},
                  {"target", entry.target},
                  {"request", entry.request},
                  {"status", entry.status},
                  {"refusal", entry.refusal}});
}

std::expected<AuditEntry, std::string> decode_audit(std::string_view text) {
  return decode<AuditEntry>(text, [](const json& value) {
    return AuditEntry{.number = number_from<std::uint64_t>(value.at("number")),
                      .time = time_from(value.at("time")),
                      .caller = value.at("caller").get<std::string>(),
                      .address = value.at("address").get<std::string>(),
                      .operation = value.at("operation").get<std::string>(),
                      .target = value.at("target").get<std::string>(),
                      .request = value.at("request").get<std::string>(),
                      .status = number_from<std::uint32_t>(value.at("status")),
                      .refusal = value.at("refusal").get<std::string>()};
  });
}

template class KeptLog<AuditEntry>;

}  // namespace sandbay::group
