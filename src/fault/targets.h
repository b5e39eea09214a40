// What the engine breaks beside block devices, as narrow interfaces: whoever owns an NVRAM or a
// power domain implements them and registers with the engine. All calls come on the engine's home
// executor, do not suspend, and take effect at that instant.
#pragma once

#include <cstdint>

#include "fault/rule.h"

namespace sandbay::fault {

class NvramFaultTarget {
 public:
  virtual std::uint64_t byte_count() const noexcept = 0;
  // nvram.loss: all content is gone.
  virtual void lose_content() = 0;
  // nvram.page: the bytes [offset, offset + length) are garbage made from `seed`.
  virtual void damage_page(std::uint64_t offset, std::uint64_t length, std::uint64_t seed) = 0;
  // A rule with nvram.stale has been added: the earlier time is now.
  virtual void remember_content() = 0;
  // nvram.stale: the content is that of an earlier time.
  virtual void return_to_earlier_content() = 0;
  // nvram.bitrot: one bit of one byte is inverted.
  virtual void flip_bit(std::uint64_t byte_offset, unsigned bit) = 0;
  // battery.low, and its end.
  virtual void set_battery_low(bool low) = 0;

 protected:
  ~NvramFaultTarget() = default;
};

// Something that loses what it holds in volatile memory when the power goes.
class PowerTarget {
 public:
  // The choice of what is lost is drawn from `seed`.
  virtual void cut_power(PowerLoss loss, std::uint64_t seed) = 0;
  // The `reorder` fault: un-flushed writes reach the medium in any order, whatever a cut says.
  virtual void set_reordering(bool reordering) = 0;

 protected:
  ~PowerTarget() = default;
};

}  // namespace sandbay::fault
