// NvramFaults: the NVRAM as the fault engine breaks it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fault/targets.h"
#include "nvram/nvram.h"

namespace sandbay::group {

class NvramFaults final : public fault::NvramFaultTarget {
 public:
  explicit NvramFaults(nvram::Nvram& nvram);  // Borrows it.

  std::uint64_t byte_count() const noexcept override;
  void lose_content() override;
  void damage_page(std::uint64_t offset, std::uint64_t length, std::uint64_t seed) override;
  void remember_content() override;
  void return_to_earlier_content() override;
  void flip_bit(std::uint64_t byte_offset, unsigned bit) override;
  void set_battery_low(bool low) override;

 private:
  nvram::Nvram& nvram_;
  nvram::BatteryState configured_;  // The state to which a low battery returns.
  std::vector<std::byte> earlier_;
};

}  // namespace sandbay::group
