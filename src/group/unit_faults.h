// UnitFaults: what fault rules at a LUN make a logical unit answer. Made on the unit's home, used
// there, and gone before the unit, or never asked again.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "fault/site.h"
#include "scsi/interference.h"

namespace sandbay::group {

class UnitFaults final : public scsi::Interference {
 public:
  UnitFaults(fault::Post& post, const std::string& volume);
  void rename(const std::string& volume);

  Arrival on_arrival(const scsi::Command& command, std::uint32_t in_set) override;
  std::optional<scsi::UnitAttention> attention_for(const scsi::Command& command,
                                                   std::uint32_t in_set) override;
  Answer answer_for(const scsi::Command& command, std::uint32_t in_set) override;

 private:
  explicit UnitFaults(std::shared_ptr<fault::Site> site)
      : scsi::Interference(site->quiet()), site_(std::move(site)) {}

  const fault::Rule* judge(const scsi::Command& command, fault::Stage stage, std::uint32_t depth,
                           Extent* extent = nullptr);

  std::shared_ptr<fault::Site> site_;
};

// Why units cannot answer as the rule wants; nothing: they can.
std::optional<std::string> answer_error(const fault::Rule& rule);

}  // namespace sandbay::group
