// Damage to an image, on command: the fault catalogue's nvram.loss, nvram.page, nvram.stale and
// nvram.bitrot. Each works on the bytes of an image, mapped (Nvram::image()) or on a
// SimulatedBoard, under a running Nvram or between two; what was damaged is found at the next
// recovery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "nvram/battery.h"
#include "runtime/random.h"

namespace sandbay::nvram {

// nvram.loss: every region's content is gone; the header, which says that there were regions,
// stays.
void lose_contents(std::span<std::byte> image);
// nvram.page: one page (0 is the first of the image) holds random bytes.
void damage_page(std::span<std::byte> image, std::uint64_t page, Random& random);
// nvram.stale: one page holds what it held in `earlier`, a copy of the image of then.
void restore_page(std::span<std::byte> image, std::span<const std::byte> earlier,
                  std::uint64_t page);
// nvram.bitrot: `bit_count` bits, drawn from the whole span, flip.
void flip_bits(std::span<std::byte> bytes, std::uint64_t bit_count, Random& random);

// What a power cut does to an image: nothing with a good battery, otherwise every region that holds
// anything is marked lost (Loss::kPowerCut) until its owner settles it. An image that cannot be
// read stays as it is.
void emulate_power_cut(std::span<std::byte> image, BatteryState battery);

}  // namespace sandbay::nvram
