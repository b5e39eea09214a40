// AuditLog: who asked for which change, from where, when, and what came of it.
//
// A KeptLog: bounded, numbered, and kept in the metadata (audit/NUMBER) soon after each entry; the
// end of the daemon waits for it. It holds what a known caller asked for, refused or not. Who has
// no token that is known cannot fill it. Executor 0.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <vector>

#include "group/event_log.h"
#include "group/kept_log.h"

namespace sandbay::group {

inline constexpr std::string_view kAuditPrefix = "audit/";

struct AuditEntry {
  std::uint64_t number = 0;
  WallTime time{};           // When it had ended.
  std::string caller;        // Of the token; empty: none was demanded.
  std::string address;       // Whence it came.
  std::string operation;     // "deleteVolume"
  std::string target;        // "DELETE /api/v1/volumes/db1?force=true"
  std::string request;       // The body as JSON text, without secrets, and cut where it is long.
  std::uint32_t status = 0;  // Of HTTP.
  std::string refusal;       // Why it was not done; empty: it was.
};

class AuditLog {
 public:
  static constexpr std::size_t kMostEntries = 4096;

  explicit AuditLog(std::size_t most_entries = kMostEntries);

  Task<Error> open(metadata::Store& store) { return log_.open(store); }
  Task<void> close() { return log_.close(); }
  void add(AuditEntry entry);  // Number and time are set here.
  std::vector<AuditEntry> since(std::uint64_t number) const { return log_.since(number); }
  std::uint64_t total() const noexcept { return log_.total(); }

 private:
  KeptLog<AuditEntry> log_;
};

std::string audit_key(std::uint64_t number);
std::string encode(const AuditEntry& entry);
std::expected<AuditEntry, std::string> decode_audit(std::string_view text);

}  // namespace sandbay::group
