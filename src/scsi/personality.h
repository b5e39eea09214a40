// Personality: what a vendor's arrays answer besides the standards. VPD pages and mode pages of
// their own, as tables: a logical unit that has a personality adds these rows to its own, and has
// no other code for any vendor. Values follow from the unit's options and from where it was asked.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace sandbay::scsi {

struct LogicalUnitOptions;

// What a row may know.
struct UnitFacts {
  const LogicalUnitOptions& options;
  std::array<std::uint8_t, 16> naa{};  // The unit's NAA 6 designator.
  std::uint32_t lun = 0;               // By which number this nexus knows it.
};

struct VendorVpdPage {
  std::uint8_t code;
  // Fills the page behind its header of four bytes, which is zeros; its length.
  std::size_t (*fill)(const UnitFacts& facts, std::span<std::byte> page);
};

struct VendorModePage {
  std::uint8_t code;
  std::uint8_t subpage;      // Other than 0: the page has the sub_page format (SPC-4 7.5.7).
  std::uint16_t byte_count;  // With the header of two or four bytes.
  // Fill a page that is zeros but for its header.
  void (*values)(const UnitFacts& facts, std::span<std::byte> page);
  void (*changeable)(std::span<std::byte> page);
  // What MODE SELECT brings: the first byte that cannot be accepted. What can be has been done.
  std::optional<std::size_t> (*refused)(const UnitFacts& facts, std::span<const std::byte> page);
};

struct Personality {
  std::string_view name;
  std::span<const VendorVpdPage> vpd_pages;    // By code, each above B2h.
  std::span<const VendorModePage> mode_pages;  // By code and subpage, each above 1Ch.
  // MODE SELECT takes pages also where PF is 0, and SP without saving anything: the hosts that know
  // these arrays send both.
  bool lenient_mode_select = false;
};

// Null if there is none of this name.
const Personality* find_personality(std::string_view name);
// Names for messages: "rdac".
inline constexpr std::string_view kPersonalities = "\"rdac\"";

// LSI's (Engenio's) redundant disk array controllers; rdac.cc.
extern const Personality kRdac;

}  // namespace sandbay::scsi
