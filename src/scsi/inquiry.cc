// INQUIRY: standard data (SPC-4 6.6.2) and vital product data (SPC-4 7.8, SBC-3 6.6).
#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include <fmt/core.h>

#include "runtime/byte_order.h"
#include "scsi/logical_unit.h"
#include "scsi/task_router.h"

namespace sandbay::scsi {
namespace {

constexpr std::size_t kMostPageBytes = 1024;
constexpr std::size_t kMostPortBytes = 12 + 4 + 256;  // SCSI Ports: of each.
constexpr std::array<std::uint8_t, 8> kVpdPages{0x00, 0x80, 0x83, 0x86, 0x88, 0xB0, 0xB1, 0xB2};

// SPC-4 7.8.6.1.
enum class CodeSet : std::uint8_t { kBinary = 1, kAscii = 2, kUtf8 = 3 };
enum class Association : std::uint8_t { kUnit = 0, kPort = 1, kTarget = 2 };
enum class Designator : std::uint8_t {
  kT10Vendor = 1,
  kEui64 = 2,
  kNaa = 3,
  kRelativePort = 4,
  kPortGroup = 5,
  kScsiName = 8,
};

// Left-aligned, filled with spaces; anything that is not graphic ASCII becomes a space.
void put_text(std::span<std::byte> target, std::string_view text) {
  for (std::size_t i = 0; i < target.size(); ++i) {
    const char letter = i < text.size() ? text[i] : ' ';
    target[i] = static_cast<std::byte>(letter >= 0x20 && letter <= 0x7E ? letter : ' ');
  }
}

std::uint32_t mixed(const std::array<std::uint8_t, 16>& uuid) {
  std::uint32_t hash = 0x811C'9DC5U;  // FNV-1a: every bit of the UUID reaches the result.
  for (const std::uint8_t byte : uuid) hash = (hash ^ byte) * 0x0100'0193U;
  return hash;
}

std::string hexadecimal(std::span<const std::uint8_t> bytes) {
  std::string text;
  for (const std::uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

// NAA 6 with the locally administered identifier 02-5B-A7, then 100 bits of the UUID: its first
// twelve bytes and half of the sixteenth.
std::array<std::uint8_t, 16> derived_naa(const std::array<std::uint8_t, 16>& uuid) {
  std::array<std::uint8_t, 16> naa{0x60, 0x25, 0xBA, 0x70};
  naa[3] = static_cast<std::uint8_t>(naa[3] | (uuid[15] & 0x0FU));
  std::copy_n(uuid.begin(), 12, naa.begin() + 4);
  return naa;
}

class DesignatorList {
 public:
  explicit DesignatorList(std::span<std::byte> target) : target_(target) {}

  void add(CodeSet code_set, Association association, Designator type,
           std::span<const std::byte> value) {
    if (used_ + 4 + value.size() > target_.size()) return;
    const unsigned protocol = association == Association::kUnit ? 0x00U : 0x50U;  // iSCSI
    const unsigned valid = association == Association::kUnit ? 0x00U : 0x80U;     // PIV
    target_[used_] = static_cast<std::byte>(protocol | static_cast<unsigned>(code_set));
    target_[used_ + 1] = static_cast<std::byte>(valid | (static_cast<unsigned>(association) << 4U) |
                                                static_cast<unsigned>(type));
    target_[used_ + 3] = static_cast<std::byte>(value.size());
    std::ranges::copy(value, target_.begin() + static_cast<std::ptrdiff_t>(used_ + 4));
    used_ += 4 + value.size();
  }
  // NUL-terminated and filled to a multiple of four (SPC-4 7.8.6.11).
  void add_name(Association association, std::string_view name) {
    std::array<std::byte, 256> value{};
    const std::size_t length = std::min<std::size_t>(name.size(), value.size() - 4);
    std::ranges::copy(std::as_bytes(std::span(name).first(length)), value.begin());
    add(CodeSet::kUtf8, association, Designator::kScsiName,
        std::span(value).first((length + 4) / 4 * 4));
  }
  std::size_t used() const { return used_; }

 private:
  std::span<std::byte> target_;
  std::size_t used_ = 0;
};

// SCSI Ports (SPC-4 7.8.14). The target's ports differ in their tags alone.
std::size_t scsi_ports(std::string_view target_port, std::span<const std::uint16_t> ports,
                       std::span<std::byte> page) {
  constexpr std::size_t kHead = 12;
  const std::string_view target = target_port.substr(0, target_port.find(",t,"));
  std::size_t used = 0;
  for (const std::uint16_t port : ports) {
    if (used + kHead > page.size()) break;
    const auto descriptor = page.subspan(used);
    DesignatorList list(descriptor.subspan(kHead));
    list.add_name(Association::kPort, fmt::format("{},t,0x{:04x}", target, port));
    if (list.used() == 0) break;
    put_big_endian(descriptor, 2, port);
    put_big_endian(descriptor, 10, static_cast<std::uint16_t>(list.used()));
    used += kHead + list.used();
  }
  return used;
}

}  // namespace

std::size_t LogicalUnit::standard_inquiry(std::span<std::byte> page) const {
  constexpr std::size_t kBytes = 96;
  page[1] = options_.removable ? std::byte{0x80} : std::byte{0x00};  // RMB
  page[2] = std::byte{0x06};                                         // SPC-4
  page[3] = std::byte{0x12};                                         // HISUP, response format 2
  page[4] = std::byte{kBytes - 5};
  // TPGS: implicit and explicit changes. Vendors' arrays have their own way to tell of paths.
  if (options_.personality == nullptr) page[5] = std::byte{0x30};
  page[7] = std::byte{0x02};  // CMDQUE
  put_text(page.subspan(8, 8), options_.vendor);
  put_text(page.subspan(16, 16), options_.product);
  put_text(page.subspan(32, 4), options_.revision);
  put_big_endian<std::uint16_t>(page, 58, 0x00A0);  // SAM-5
  put_big_endian<std::uint16_t>(page, 60, 0x0460);  // SPC-4
  put_big_endian<std::uint16_t>(page, 62, 0x04C0);  // SBC-3
  put_big_endian<std::uint16_t>(page, 64, 0x0960);  // iSCSI
  return kBytes;
}

std::array<std::uint8_t, 16> LogicalUnit::naa() const {
  return options_.naa.value_or(derived_naa(options_.uuid));
}

UnitFacts LogicalUnit::facts_for(const Command& command) const {
  return {.options = options_, .naa = naa(), .lun = decode_lun(command.lun).value_or(0)};
}

std::size_t LogicalUnit::device_identification(const NexusIdentity& nexus,
                                               std::span<std::byte> page) const {
  DesignatorList list(page);
  const std::array<std::uint8_t, 16> designator = naa();
  list.add(CodeSet::kBinary, Association::kUnit, Designator::kNaa,
           std::as_bytes(std::span(designator)));

  // Some initiators compare only the first eight characters behind the vendor: they differ from
  // volume to volume.
  std::array<std::byte, 8 + 8 + 32> vendor{};
  put_text(std::span(vendor).first(8), options_.vendor);
  put_text(std::span(vendor).subspan(8, 8), fmt::format("{:08x}", mixed(options_.uuid)));
  put_text(std::span(vendor).subspan(16), hexadecimal(options_.uuid));
  list.add(CodeSet::kAscii, Association::kUnit, Designator::kT10Vendor, vendor);
  if (options_.eui64) {
    list.add(CodeSet::kBinary, Association::kUnit, Designator::kEui64,
             std::as_bytes(std::span(*options_.eui64)));
  }

  std::array<std::byte, 4> number{};
  put_big_endian(std::span<std::byte>(number), 2, nexus.relative_target_port);
  list.add(CodeSet::kBinary, Association::kPort, Designator::kRelativePort, number);
  put_big_endian(std::span<std::byte>(number), 2, nexus.target_port_group);
  list.add(CodeSet::kBinary, Association::kPort, Designator::kPortGroup, number);

  const std::string_view port = nexus.target_port;
  if (!port.empty()) {
    list.add_name(Association::kPort, port);
    list.add_name(Association::kTarget, port.substr(0, port.find(",t,")));
  }
  return list.used();
}

// SBC-3 6.6.4, with its first four bytes already skipped.
std::size_t LogicalUnit::block_limits(std::span<std::byte> page) const {
  const Geometry& blocks = geometry();
  const std::uint64_t most = options_.maximum_transfer_bytes / blocks.block_bytes;
  page[1] = static_cast<std::byte>(most_compared_blocks());
  put_big_endian(page, 2, static_cast<std::uint16_t>(blocks_per_physical()));
  put_big_endian(page, 4, static_cast<std::uint32_t>(std::min<std::uint64_t>(most, ~0U)));
  put_big_endian(page, 8, blocks.optimal_io_blocks);
  if (thin()) {
    put_big_endian(page, 16, options_.maximum_unmap_blocks);
    put_big_endian(page, 20, options_.maximum_unmap_descriptors);
    put_big_endian(page, 24, blocks.unmap_granularity_blocks);
    put_big_endian(page, 28, std::uint32_t{0x8000'0000});  // UGAVALID, alignment 0
  }
  put_big_endian(page, 32, std::uint64_t{options_.maximum_write_same_blocks});
  if (atomic_writes_.offered()) {
    // SBC-4: without rules for their place and length, and without boundaries.
    put_big_endian(page, 40, static_cast<std::uint32_t>(most_atomic_blocks()));
  }
  return 60;
}

std::size_t LogicalUnit::supported_vpd_pages(std::span<std::byte> page) const {
  std::size_t count = 0;
  for (const std::uint8_t code : kVpdPages) page[count++] = std::byte{code};
  if (options_.personality == nullptr) return count;
  for (const VendorVpdPage& row : options_.personality->vpd_pages) {
    page[count++] = std::byte{row.code};
  }
  return count;
}

// The page behind its header of four bytes; 0 for one that is not there.
std::size_t LogicalUnit::vital_product_data(std::uint8_t code, const Command& command,
                                            std::span<std::byte> page) const {
  switch (code) {
    case 0x00:
      return supported_vpd_pages(page);
    case 0x80: {
      const std::string serial =
          options_.serial.empty() ? hexadecimal(options_.uuid) : options_.serial;
      const std::size_t length = std::min<std::size_t>(serial.size(), 252);
      put_text(page.first(length), serial);
      return length;
    }
    case 0x83:
      return device_identification(command.nexus->identity(), page);
    case 0x86:
      page[1] = std::byte{0x07};  // HEADSUP, ORDSUP, SIMPSUP
      // V_SUP, NV_SUP: what SYNCHRONIZE CACHE and FUA have to do with.
      if (geometry().volatile_cache) page[2] |= std::byte{0x01};
      if (geometry().non_volatile_cache) page[2] |= std::byte{0x02};
      page[3] = std::byte{0x01};  // LUICLR: unit attentions are per nexus.
      return 60;
    case 0x88:
      return scsi_ports(command.nexus->identity().target_port, options_.target_ports, page);
    case 0xB0:
      return block_limits(page);
    case 0xB1: {
      const bool flash = !geometry().rotational && options_.rotation_rate == 0;
      put_big_endian<std::uint16_t>(page, 0, flash ? 1 : options_.rotation_rate);
      // WABEREQ: after a block erase, reads end well.
      if (thin()) page[3] = std::byte{0x40};
      return 60;
    }
    case 0xB2:
      if (thin()) {
        page[1] = std::byte{0xE2};                                // LBPU, LBPWS, LBPWS10, ANC_SUP
        if (geometry().unmap_zeroes) page[1] |= std::byte{0x04};  // LBPRZ
        page[2] = std::byte{0x02};                                // Thin provisioned
      }
      return 4;
    default:
      if (options_.personality == nullptr) return 0;
      for (const VendorVpdPage& row : options_.personality->vpd_pages) {
        if (row.code == code) return row.fill(facts_for(command), page);
      }
      return 0;
  }
}

Job LogicalUnit::inquiry(Command& command) {
  const bool vital = (std::to_integer<unsigned>(command.cdb[1]) & 0x01U) != 0;  // EVPD
  const auto code = std::to_integer<std::uint8_t>(command.cdb[2]);
  const auto allocation_length = big_endian<std::uint16_t>(command.cdb, 3);
  std::vector<std::byte> data(kMostPageBytes);
  if (vital && code == 0x88) {
    data.resize(std::min<std::size_t>(0xFFFF, 4 + options_.target_ports.size() * kMostPortBytes));
  }
  std::size_t used = 0;
  if (vital) {
    const std::size_t length = vital_product_data(code, command, std::span(data).subspan(4));
    if (length == 0 || (command.unit_vanished && code != 0)) co_return invalid_cdb(2);
    data[1] = std::byte{code};
    put_big_endian(std::span(data), 2, static_cast<std::uint16_t>(length));
    used = length + 4;
  } else {
    if (code != 0) co_return invalid_cdb(2);
    used = standard_inquiry(data);
  }
  if (command.unit_vanished) data[0] = std::byte{0x7F};  // As of a LUN that leads nowhere.
  co_return co_await return_parameters(command, std::span(data).first(used), allocation_length);
}

}  // namespace sandbay::scsi
