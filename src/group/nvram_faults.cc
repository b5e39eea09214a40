// What is damaged is the running image; the NVRAM's own checks find it at the next recovery.
#include "group/nvram_faults.h"

#include <algorithm>
#include <cassert>

#include "nvram/damage.h"
#include "nvram/image_layout.h"

namespace sandbay::group {

NvramFaults::NvramFaults(nvram::Nvram& nvram)
    : nvram_(nvram), configured_(nvram.battery().state()) {}

void NvramFaults::remember_content() {
  const auto image = nvram_.image();
  earlier_.assign(image.begin(), image.end());
}

std::uint64_t NvramFaults::byte_count() const noexcept { return nvram_.image().size(); }

void NvramFaults::lose_content() { nvram::lose_contents(nvram_.image()); }

void NvramFaults::damage_page(std::uint64_t offset, std::uint64_t length, std::uint64_t seed) {
  Random random(seed);
  const auto image = nvram_.image();
  const std::uint64_t end = std::min<std::uint64_t>(offset + length, image.size());
  for (std::uint64_t at = offset; at < end; ++at) {
    image[at] = static_cast<std::byte>(random.below(256));
  }
}

void NvramFaults::return_to_earlier_content() {
  const auto image = nvram_.image();
  assert(image.size() == earlier_.size());  // No rule without remember_content().
  // The head stays: it is this image, and the seals of its logs are a memory of their own.
  const std::uint64_t first = nvram::kHeaderBytes / nvram::kPageBytes;
  for (std::uint64_t page = first; page < image.size() / nvram::kPageBytes; ++page) {
    nvram::restore_page(image, earlier_, page);
  }
}

void NvramFaults::flip_bit(std::uint64_t byte_offset, unsigned bit) {
  const auto image = nvram_.image();
  if (byte_offset < image.size()) image[byte_offset] ^= static_cast<std::byte>(1U << (bit % 8));
}

void NvramFaults::set_battery_low(bool low) {
  nvram_.battery().set_state(low ? nvram::BatteryState::kLow : configured_);
}

}  // namespace sandbay::group
