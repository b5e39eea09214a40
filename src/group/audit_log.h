// AuditLog: who asked for which change, from where, when, and what came of it.
//
// A KeptLog (audit/NUMBER) whose callers share its room: a caller who asks for much drops entries
// of its own first. Every entry is also a line of the daemon's log, which may be forwarded
// elsewhere. Strangers, who show no known token, are not in it.
//
// begin() stores what was asked for before the change is made (audit-begun/NUMBER); the entry with
// the outcome takes that record's place. If the daemon is killed in between, the next start adds an
// entry that says that the outcome is unknown. Executor 0.
#pragma once

#include <cstdint>
#include <expected>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "group/event_log.h"
#include "group/kept_log.h"

namespace sandbay::group {

inline constexpr std::string_view kAuditPrefix = "audit/";
inline constexpr std::string_view kBegunPrefix = "audit-begun/";

struct AuditEntry {
  std::uint64_t number = 0;
  WallTime time{};           // When it ended; with status 0, when it began.
  std::string caller;        // The token's name, or "uid 1000" without tokens.
  std::string address;       // Where the request came from.
  std::string operation;     // "deleteVolume"
  std::string target;        // "DELETE /api/v1/volumes/db1?force=true"
  std::string request;       // The body as JSON text, without secrets, and cut where it is long.
  std::uint32_t status = 0;  // Of HTTP; 0: unknown.
  std::string refusal;       // Why it was not done; empty: it was.
  std::string begun;         // What begin() answered; not stored.
};

class AuditLog {
 public:
  static constexpr std::size_t kMostEntries = 4096;

  explicit AuditLog(std::size_t most_entries = kMostEntries);

  Task<Error> open(metadata::Store& store);
  Task<void> close();
  // A change is about to be made. Answers the key of the record to hand to add(); empty if the
  // store has not kept it, which is logged and stops no change. Waits a second at most.
  Task<std::string> begin(AuditEntry entry);
  void add(AuditEntry entry);  // Number and time are set here.
  std::vector<AuditEntry> since(std::uint64_t number) const { return log_.since(number); }
  std::uint64_t total() const noexcept { return log_.total(); }

 private:
  struct Beginning;

  static Task<void> keep(AuditLog* log, std::shared_ptr<Beginning> beginning);
  Task<Error> add_unfinished(metadata::Store* store);

  KeptLog<AuditEntry> log_;
  metadata::Store* store_ = nullptr;
  std::uint64_t begun_ = 0;  // Numbers given by begin(), over restarts too.
  Gate gate_;
};

std::string audit_key(std::uint64_t number);
std::string encode(const AuditEntry& entry);
std::expected<AuditEntry, std::string> decode_audit(std::string_view text);
// The entry as one line of text, whatever a caller has put into it.
std::string audit_line(const AuditEntry& entry);

}  // namespace sandbay::group
