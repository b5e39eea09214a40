// The mode parameters of a logical unit (SPC-4 clause 7.5, SBC-3 clause 6.5): values, their
// encoding as pages, and the decoding of what MODE SELECT brings.
//
// Pages: read-write error recovery 01h, caching 08h, control 0Ah, informational exceptions 1Ch, and
// those of a personality. All initiators share one set (TST = 0); nothing is saved over a power
// cycle.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <span>

#include "scsi/personality.h"

namespace sandbay::scsi {

// The parameters that MODE SELECT can change.
struct ModeParameters {
  bool write_cache_enabled = true;   // Caching: WCE. Without it, every write is to stable storage.
  bool read_cache_disabled = false;  // Caching: RCD. Every read comes from the medium.
  bool descriptor_sense = false;     // Control: D_SENSE.
  bool task_aborted_status = false;  // Control: TAS.
  bool software_write_protect = false;  // Control: SWP.
  bool operator==(const ModeParameters&) const = default;
};

enum class PageControl : std::uint8_t { kCurrent, kChangeable, kDefault, kSaved };

inline constexpr std::uint8_t kAllPages = 0x3F;
inline constexpr std::uint8_t kAllSubpages = 0xFF;
inline constexpr std::size_t kLargestModeData = 512;

// Appends the pages asked for to `target`; the bytes used, or nothing if there is no such page.
// `values` are the current or the default ones; kChangeable gives the mask instead. Pages of the
// unit's personality, if it has one, follow from `facts`.
std::size_t encode_mode_pages(const ModeParameters& values, const UnitFacts& facts, bool changeable,
                              std::uint8_t page, std::uint8_t subpage, std::span<std::byte> target);

// Where in the parameter list a value cannot be accepted.
struct ModeSelectError {
  bool length = false;  // The list ends within a page: PARAMETER LIST LENGTH ERROR.
  std::size_t byte = 0;
};

// What `values` become by the pages in `list`, which starts behind header and block descriptors.
std::expected<ModeParameters, ModeSelectError> decode_mode_pages(const ModeParameters& values,
                                                                 const UnitFacts& facts,
                                                                 std::span<const std::byte> list);

}  // namespace sandbay::scsi
