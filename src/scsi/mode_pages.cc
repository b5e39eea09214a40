// Mode pages as bytes: read-write error recovery (SBC-3 6.5.8), caching (SBC-3 6.5.5), control
// (SPC-4 7.5.8) and informational exceptions control (SBC-3 6.5.6).
#include "scsi/mode_pages.h"

#include <algorithm>
#include <cassert>
#include <optional>

#include "runtime/byte_order.h"
#include "scsi/logical_unit.h"

namespace sandbay::scsi {
namespace {

constexpr std::size_t kLargestPage = 20;
using PageBytes = std::array<std::uint8_t, kLargestPage>;

struct PageRow {
  std::uint8_t code;
  std::uint8_t byte_count;  // With the two bytes of the header.
  PageBytes (*values)(const ModeParameters& parameters);
  PageBytes changeable;
};

constexpr std::byte kSubpageFormat{0x40};  // SPF
constexpr std::uint8_t kWce = 0x04;
constexpr std::uint8_t kRcd = 0x01;
constexpr std::uint8_t kDSense = 0x04;
constexpr std::uint8_t kSwp = 0x08;
constexpr std::uint8_t kTas = 0x40;

PageBytes error_recovery(const ModeParameters&) {
  // AWRE and ARRE: the layers below reallocate by themselves.
  return {0x01, 0x0A, 0xC0};
}

PageBytes caching(const ModeParameters& parameters) {
  PageBytes page{0x08, 0x12};
  if (parameters.write_cache_enabled) page[2] |= kWce;
  if (parameters.read_cache_disabled) page[2] |= kRcd;
  return page;
}

PageBytes control(const ModeParameters& parameters) {
  PageBytes page{0x0A, 0x0A};
  page[2] = 0x02;  // GLTSD: there are no log parameters to save.
  if (parameters.descriptor_sense) page[2] |= kDSense;
  page[3] = 0x10;  // QUEUE ALGORITHM MODIFIER: unrestricted reordering of SIMPLE commands.
  if (parameters.software_write_protect) page[4] |= kSwp;
  if (parameters.task_aborted_status) page[5] |= kTas;
  return page;
}

PageBytes informational_exceptions(const ModeParameters&) {
  // DEXCPT: no failure predictions are reported through sense data.
  return {0x1C, 0x0A, 0x08};
}

constexpr std::array kPages{
    PageRow{0x01, 12, error_recovery, {}},
    PageRow{0x08, 20, caching, {0, 0, kWce | kRcd}},
    PageRow{0x0A, 12, control, {0, 0, kDSense, 0, kSwp, kTas}},
    PageRow{0x1C, 12, informational_exceptions, {}},
};

const PageRow* find_page(unsigned code) {
  const auto* row = std::ranges::find(kPages, code, &PageRow::code);
  return row == kPages.end() ? nullptr : row;
}

void take_values(const PageRow& row, std::span<const std::byte> page, ModeParameters& values) {
  const auto bit = [&](std::size_t byte, std::uint8_t mask) {
    return (std::to_integer<std::uint8_t>(page[byte]) & mask) != 0;
  };
  if (row.code == 0x08) {
    values.write_cache_enabled = bit(2, kWce);
    values.read_cache_disabled = bit(2, kRcd);
  } else if (row.code == 0x0A) {
    values.descriptor_sense = bit(2, kDSense);
    values.software_write_protect = bit(4, kSwp);
    values.task_aborted_status = bit(5, kTas);
  }
}

// The offset in the page of the first bit that cannot be set so (SPC-4 6.11: a value that is not
// changeable must stand as MODE SENSE gives it).
std::optional<std::size_t> refused_byte(const PageRow& row, const ModeParameters& values,
                                        std::span<const std::byte> page) {
  const PageBytes current = row.values(values);
  for (std::size_t i = 2; i < row.byte_count; ++i) {
    const unsigned difference = std::to_integer<unsigned>(page[i]) ^ current[i];
    if ((difference & ~static_cast<unsigned>(row.changeable[i]) & 0xFFU) != 0) return i;
  }
  return std::nullopt;
}

std::span<const VendorModePage> vendor_pages(const UnitFacts& facts) {
  if (facts.options.personality == nullptr) return {};
  return facts.options.personality->mode_pages;
}

std::size_t encode_vendor_page(const VendorModePage& row, const UnitFacts& facts, bool changeable,
                               std::span<std::byte> target) {
  const std::span<std::byte> page = target.first(row.byte_count);
  page[0] = std::byte{row.code};
  if (row.subpage == 0) {
    page[1] = static_cast<std::byte>(row.byte_count - 2);
  } else {
    page[0] |= kSubpageFormat;
    page[1] = std::byte{row.subpage};
    put_big_endian(page, 2, static_cast<std::uint16_t>(row.byte_count - 4));
  }
  if (changeable) {
    row.changeable(page);
  } else {
    row.values(facts, page);
  }
  return row.byte_count;
}

// The row that a page in a parameter list is of, and where its length stands.
const VendorModePage* find_vendor_page(const UnitFacts& facts, std::span<const std::byte> page) {
  const unsigned code = std::to_integer<unsigned>(page[0]) & 0x3FU;
  const bool subpages = (page[0] & kSubpageFormat) != std::byte{0};
  const unsigned subpage = subpages ? std::to_integer<unsigned>(page[1]) : 0U;
  for (const VendorModePage& row : vendor_pages(facts)) {
    if (row.code == code && row.subpage == subpage) return &row;
  }
  return nullptr;
}

// Takes a vendor's page; its bytes.
std::expected<std::size_t, ModeSelectError> take_vendor_page(const VendorModePage& row,
                                                             const UnitFacts& facts,
                                                             std::span<const std::byte> page) {
  const std::size_t header = row.subpage == 0 ? 2 : 4;
  if (page.size() < header) return std::unexpected(ModeSelectError{.length = true});
  const std::size_t length =
      header == 2 ? std::to_integer<std::size_t>(page[1]) : big_endian<std::uint16_t>(page, 2);
  if (length + header != row.byte_count) {
    return std::unexpected(ModeSelectError{.byte = header / 2});
  }
  if (page.size() < row.byte_count) return std::unexpected(ModeSelectError{.length = true});
  if (const auto refused = row.refused(facts, page.first(row.byte_count))) {
    return std::unexpected(ModeSelectError{.byte = *refused});
  }
  return row.byte_count;
}

}  // namespace

std::size_t encode_mode_pages(const ModeParameters& values, const UnitFacts& facts, bool changeable,
                              std::uint8_t page, std::uint8_t subpage,
                              std::span<std::byte> target) {
  std::size_t used = 0;
  // Of all pages, either all subpages or none; the codes between are reserved (SPC-4 6.11).
  if (page == kAllPages && subpage != 0 && subpage != kAllSubpages) return used;
  for (const PageRow& row : kPages) {
    if (page != kAllPages && page != row.code) continue;
    // None of these has subpages, so "all of them" means the page itself.
    if (subpage != 0 && subpage != kAllSubpages) continue;
    assert(used + row.byte_count <= target.size());
    PageBytes bytes = row.values(values);
    if (changeable) {
      const std::array header{bytes[0], bytes[1]};
      bytes = row.changeable;
      std::ranges::copy(header, bytes.begin());
    }
    for (std::size_t i = 0; i < row.byte_count; ++i) target[used + i] = std::byte{bytes[i]};
    used += row.byte_count;
  }
  for (const VendorModePage& row : vendor_pages(facts)) {
    if (page != kAllPages && page != row.code) continue;
    if (subpage != row.subpage && subpage != kAllSubpages) continue;
    assert(used + row.byte_count <= target.size());
    used += encode_vendor_page(row, facts, changeable, target.subspan(used));
  }
  return used;
}

std::expected<ModeParameters, ModeSelectError> decode_mode_pages(const ModeParameters& values,
                                                                 const UnitFacts& facts,
                                                                 std::span<const std::byte> list) {
  ModeParameters result = values;
  std::size_t at = 0;
  while (at < list.size()) {
    const std::span<const std::byte> page = list.subspan(at);
    if (page.size() < 2) return std::unexpected(ModeSelectError{.length = true, .byte = at});
    if (const VendorModePage* const row = find_vendor_page(facts, page)) {
      const auto taken = take_vendor_page(*row, facts, page);
      if (!taken) {
        return std::unexpected(
            ModeSelectError{.length = taken.error().length, .byte = at + taken.error().byte});
      }
      at += *taken;
      continue;
    }
    const auto first = std::to_integer<unsigned>(page[0]);
    // PS is reserved in MODE SELECT; initiators that send back what they sensed leave it alone.
    const bool subpage_format = (page[0] & kSubpageFormat) != std::byte{0};
    const PageRow* row = find_page(first & 0x3FU);
    if (row == nullptr || subpage_format) return std::unexpected(ModeSelectError{.byte = at});
    if (std::to_integer<std::size_t>(page[1]) + 2 != row->byte_count) {
      return std::unexpected(ModeSelectError{.byte = at + 1});
    }
    if (page.size() < row->byte_count) {
      return std::unexpected(ModeSelectError{.length = true, .byte = at});
    }
    if (const auto refused = refused_byte(*row, values, page)) {
      return std::unexpected(ModeSelectError{.byte = at + *refused});
    }
    take_values(*row, page, result);
    at += row->byte_count;
  }
  return result;
}

}  // namespace sandbay::scsi
