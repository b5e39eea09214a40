// ImportRules: what a start demands of stored records, asked of an import before it counts. The
// start ends at a record that breaks a rule, and by then the import has replaced the old records.
//
// Rules of one record: it is readable, its target has an iSCSI name, its access records are valid.
// Rules of several: volume names, files and LUNs of a target occur once.
#pragma once

#include <map>
#include <set>
#include <string>

#include "metadata/store.h"

namespace sandbay::group {

class ImportRules {
 public:
  // Records of members pass: their own daemon reads them.
  void add(const metadata::Entry& entry);
  // The first broken rule, in one sentence; empty if there is none.
  const std::string& mistake() const noexcept { return mistake_; }

 private:
  std::string judge(const metadata::Entry& entry);
  std::string judge_volume(const std::string& value);

  std::set<std::string> names_;               // Volume names.
  std::map<std::string, std::string> files_;  // The volume of each file,
  std::map<std::string, std::string> units_;  // and of each target's LUN.
  std::string mistake_;
};

}  // namespace sandbay::group
