// The audit of changes as management sees it.
#include "group/running_group.h"

namespace sandbay::group {

Task<std::string> RunningGroup::begin_change(AuditEntry entry) {
  return looking(audit_.begin(std::move(entry)), {});
}

Task<bool> RunningGroup::note_change_now(AuditEntry entry) {
  audit_.add(std::move(entry));
  co_return true;
}

Task<bool> RunningGroup::note_change(AuditEntry entry) {
  co_return co_await looking(note_change_now(std::move(entry)), false);
}

Task<std::vector<AuditEntry>> RunningGroup::audit_now(std::uint64_t since) {
  co_return audit_.since(since);
}

Task<std::vector<AuditEntry>> RunningGroup::list_audit(std::uint64_t since) {
  return looking(audit_now(since), {});
}

}  // namespace sandbay::group
