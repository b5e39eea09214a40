// CDBs and results.
#include "lab/scsi_transfer.h"

#include <fmt/core.h>

#include <string_view>

#include "runtime/byte_order.h"

namespace sandbay::lab {
namespace {

// What users can do something about.
std::string_view words_of(const iscsi::ScsiResult& result) {
  if (result.status == scsi::Status::kReservationConflict) return "another host has reserved it";
  if (result.status != scsi::Status::kCheckCondition) return {};
  switch (result.sense_key()) {
    case scsi::SenseKey::kNotReady:
      return "it is not ready";
    case scsi::SenseKey::kMediumError:
      return "its medium has an error there";
    case scsi::SenseKey::kHardwareError:
      return "its hardware has failed";
    case scsi::SenseKey::kDataProtect:
      return "it is write-protected, or has no space left";
    default:
      return {};
  }
}

}  // namespace

std::array<std::byte, 16> transfer_cdb(bool write, std::uint64_t lba, std::uint32_t blocks) {
  std::array<std::byte, 16> cdb{};
  cdb[0] = write ? std::byte{0x8A} : std::byte{0x88};
  put_big_endian<std::uint64_t>(cdb, 2, lba);
  put_big_endian<std::uint32_t>(cdb, 10, blocks);
  return cdb;
}

std::string explain(const iscsi::ScsiResult& result) {
  if (result.error != Error::kNone) return std::string(describe(result.error));
  if (result.good()) return fmt::format("status 00h, and {} bytes too few", result.residual);
  const std::string_view words = words_of(result);
  return fmt::format("{}{}status {:02x}h, sense key {:x}h, additional sense {:04x}h", words,
                     words.empty() ? "" : ": ", static_cast<unsigned>(result.status),
                     static_cast<unsigned>(result.sense_key()),
                     static_cast<unsigned>(result.additional()));
}

bool transient(const iscsi::ScsiResult& result) {
  if (result.error != Error::kNone) return false;
  if (result.status == scsi::Status::kBusy || result.status == scsi::Status::kTaskSetFull) {
    return true;
  }
  return result.status == scsi::Status::kCheckCondition &&
         result.sense_key() == scsi::SenseKey::kUnitAttention;
}

}  // namespace sandbay::lab
