// ImportRules: what a start demands of stored records, asked of an import before it counts. The
// start ends at a record that breaks a rule, and by then the import has replaced the old records.
//
// Rules of one record: it is readable, its target has an iSCSI name, its access records are valid.
// Rule of several: a LUN of a target occurs once. Volumes of one name or file do not end a start.
#pragma once

#include <map>
#include <string>

#include "metadata/store.h"

namespace sandbay::group {

class ImportRules {
 public:
  // Records of members pass: their own daemon reads them.
  void add(const metadata::Entry& entry);
  // The first broken rule, in one sentence; empty without one.
  const std::string& mistake() const noexcept { return mistake_; }

 private:
  std::string judge(const metadata::Entry& entry);
  std::string judge_volume(const std::string& value);

  std::map<std::string, std::string> units_;  // The volume of each target's LUN.
  std::string mistake_;
};

}  // namespace sandbay::group
