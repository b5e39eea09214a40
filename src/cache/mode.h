// Mode: what the cache does with a volume's data. A volume may change its mode at any time; what is
// dirty then is destaged as before.
#pragma once

#include <cstdint>

namespace sandbay::cache {

enum class Mode : std::uint8_t {
  kWriteBack,     // Writes are acknowledged when the cache has them.
  kWriteThrough,  // ... when the device below has them. Reads are cached.
  kNone,          // Nothing is kept.
};

}  // namespace sandbay::cache
