// The personality of LSI's (Engenio's) controllers, which IBM sold as the DS3000 to DS5000: VPD
// pages C2h (software version), C4h (subsystem), C8h (extended device identification) and C9h
// (volume access control), and mode page 2Ch (redundant controller), by which hosts have a volume
// transferred from one controller to the other.
//
// The vendor's own document is not public. Layouts are those that hosts read: Linux
// drivers/scsi/device_handler/scsi_dh_rdac.c, OpenBSD sys/scsi/mpath_rdac.c, checker and
// prioritizer "rdac" of multipath-tools, and sg_rdac of sg3_utils. What none of them reads is zero.
//
// There is one controller here, A, which owns every volume.
#include <algorithm>
#include <cctype>

#include "runtime/byte_order.h"
#include "scsi/logical_unit.h"
#include "scsi/personality.h"

namespace sandbay::scsi {
namespace {

constexpr std::size_t kLabelBytes = 60;
constexpr std::byte kOwner{0x01};      // C9h byte 8: this controller owns the volume.
constexpr std::byte kPreferred{0x01};  // C9h byte 9: and is the one that should.

// Mode page 2Ch means one thing by what is sensed and another by what is selected.
constexpr std::uint8_t kActive = 0x01;             // Mode, sensed: it works, and alone.
constexpr std::uint8_t kOwned = 0x01;              // Table, sensed: this controller has the LUN.
constexpr std::uint8_t kTransferAll = 0x01;        // Mode, selected: move every LUN here,
constexpr std::uint8_t kTransferSpecified = 0x02;  // or those that the table marks.
constexpr std::uint8_t kToThisController = 0x81;   // Table, selected.

// In the mode page, behind its header: two serial numbers of 16 bytes, two modes of two bytes, a
// timeout and options; then the table, a byte for each LUN.
constexpr std::size_t kModeAt = 32;
constexpr std::size_t kTableAt = 38;
constexpr std::size_t kShortTable = 32;
constexpr std::size_t kLongTable = 256;

void put_characters(std::span<std::byte> target, std::string_view text) {
  for (std::size_t i = 0; i < target.size(); ++i) {
    target[i] = static_cast<std::byte>(i < text.size() ? text[i] : ' ');
  }
}

// One byte of length, then characters of two bytes, the higher first.
void put_label(std::span<std::byte> target, std::string_view text) {
  const std::size_t count = std::min(text.size(), kLabelBytes / 2);
  target[0] = static_cast<std::byte>(count * 2);
  for (std::size_t i = 0; i < count; ++i) target[2 + i * 2] = static_cast<std::byte>(text[i]);
}

// The array's number in 16 letters, of which the last says which controller it is.
std::array<char, 16> controller_serial(const UnitFacts& facts, char slot) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::array<char, 16> text{};
  for (std::size_t i = 0; i < 15; ++i) {
    const unsigned byte = facts.options.array_id[8 + i / 2];
    text[i] = kDigits[i % 2 == 0 ? byte >> 4U : byte & 0x0FU];
  }
  text[15] = slot;
  return text;
}

std::size_t software_version(const UnitFacts& facts, std::span<std::byte> page) {
  put_characters(page.first(4), "swr4");
  // The version in binary coded decimal, as far as the revision is one.
  const std::string& revision = facts.options.revision;
  const bool digits =
      revision.size() == 4 &&
      std::ranges::all_of(revision, [](unsigned char letter) { return std::isdigit(letter) != 0; });
  for (std::size_t i = 0; digits && i < 2; ++i) {
    page[4 + i] =
        static_cast<std::byte>((revision[i * 2] - '0') << 4 | (revision[i * 2 + 1] - '0'));
  }
  page[11] = std::byte{0xFF};  // LUNs: with 32 and more hosts send the long form of page 2Ch.
  return 251;
}

std::size_t subsystem(const UnitFacts& facts, std::span<std::byte> page) {
  put_characters(page.first(4), "subs");
  const auto serial = controller_serial(facts, ' ');
  put_characters(page.subspan(4, 16), std::string_view(serial.data(), serial.size()));
  put_characters(page.subspan(20, 4), facts.options.revision);
  page[25] = std::byte{0x31};  // Slot: '1' is controller A.
  return 28;
}

std::size_t extended_device_identification(const UnitFacts& facts, std::span<std::byte> page) {
  put_characters(page.first(4), "edid");
  const auto put_id = [&](std::size_t at, std::span<const std::uint8_t, 16> id) {
    page[at] = std::byte{16};
    std::ranges::copy(std::as_bytes(id), page.begin() + static_cast<std::ptrdiff_t>(at + 1));
  };
  put_id(7, facts.naa);
  put_label(page.subspan(24, 1 + kLabelBytes), facts.options.name);
  put_id(85, facts.options.array_id);
  put_label(page.subspan(102, 1 + kLabelBytes), facts.options.array_label);
  put_big_endian(page, 163, std::uint64_t{facts.lun});
  return 171;
}

std::size_t volume_access_control(const UnitFacts& /*facts*/, std::span<std::byte> page) {
  put_characters(page.first(4), "vac1");  // Linux does not look, multipath-tools reads three.
  page[4] = kOwner;                       // No AVT, no I/O shipping, no data of target port groups.
  page[5] = kPreferred;
  return 44;
}

template <std::size_t kHeader>
void redundant_controller(const UnitFacts& facts, std::span<std::byte> page) {
  const std::span<std::byte> body = page.subspan(kHeader);
  const auto own = controller_serial(facts, 'A');
  const auto other = controller_serial(facts, 'B');
  put_characters(body.first(16), std::string_view(own.data(), own.size()));
  put_characters(body.subspan(16, 16), std::string_view(other.data(), other.size()));
  const std::size_t table = kHeader == 2 ? kShortTable : kLongTable;
  body[kModeAt + 1] = std::byte{kActive};
  if (facts.lun < table) body[kTableAt + facts.lun] = std::byte{kOwned};
}

template <std::size_t kHeader>
void redundant_controller_mask(std::span<std::byte> page) {
  const std::size_t table = kHeader == 2 ? kShortTable : kLongTable;
  page[kHeader + kModeAt + 1] = std::byte{0xFF};
  std::ranges::fill(page.subspan(kHeader + kTableAt, table), std::byte{0xFF});
}

// A transfer to this controller is done at once: it has what it asks for. No other can be asked.
// What was sensed may come back.
template <std::size_t kHeader>
std::optional<std::size_t> refused_transfer(const UnitFacts& /*facts*/,
                                            std::span<const std::byte> page) {
  const std::size_t mode_at = kHeader + kModeAt + 1;
  const auto mode = std::to_integer<std::uint8_t>(page[mode_at]);
  if (mode != 0 && mode != kTransferAll && mode != kTransferSpecified) return mode_at;
  const std::size_t table = kHeader == 2 ? kShortTable : kLongTable;
  for (std::size_t i = 0; i < table; ++i) {
    const auto entry = std::to_integer<std::uint8_t>(page[kHeader + kTableAt + i]);
    if (entry != 0 && entry != kOwned && entry != kToThisController) {
      return kHeader + kTableAt + i;
    }
  }
  return std::nullopt;
}

constexpr std::array kRdacVpdPages{
    VendorVpdPage{0xC2, software_version},
    VendorVpdPage{0xC4, subsystem},
    VendorVpdPage{0xC8, extended_device_identification},
    VendorVpdPage{0xC9, volume_access_control},
};

constexpr std::array kRdacModePages{
    VendorModePage{0x2C, 0x00, 106, redundant_controller<2>, redundant_controller_mask<2>,
                   refused_transfer<2>},
    VendorModePage{0x2C, 0x01, 300, redundant_controller<4>, redundant_controller_mask<4>,
                   refused_transfer<4>},
};

}  // namespace

constinit const Personality kRdac{.name = "rdac",
                                  .vpd_pages = kRdacVpdPages,
                                  .mode_pages = kRdacModePages,
                                  .lenient_mode_select = true};

}  // namespace sandbay::scsi
