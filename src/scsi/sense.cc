// Encoding of sense data: SPC-4 clause 4.5.2 (descriptor format) and 4.5.3 (fixed format).
#include "scsi/sense.h"

#include <algorithm>
#include <array>

#include "runtime/byte_order.h"

namespace sandbay::scsi {
namespace {

constexpr std::size_t kFixedBytes = 18;

// SENSE KEY SPECIFIC (SPC-4 4.5.2.4): three bytes, the first with SKSV set; false if there are
// none.
bool put_key_specific(const Sense& sense, std::span<std::byte> target) {
  if (sense.field) {
    unsigned flags = 0x80;
    if (sense.field->in_cdb) flags |= 0x40;
    if (sense.field->bit) flags |= 0x08U | (*sense.field->bit & 0x07U);
    target[0] = static_cast<std::byte>(flags);
    put_big_endian<std::uint16_t>(target, 1, sense.field->byte);
    return true;
  }
  if (sense.progress) {
    target[0] = std::byte{0x80};
    put_big_endian<std::uint16_t>(target, 1, *sense.progress);
    return true;
  }
  return false;
}

std::size_t encode_fixed(const Sense& sense, std::span<std::byte> target) {
  unsigned response = sense.deferred ? 0x71 : 0x70;
  if (sense.information && *sense.information <= 0xFFFF'FFFFU) {
    response |= 0x80;  // VALID
    put_big_endian(target, 3, static_cast<std::uint32_t>(*sense.information));
  }
  target[0] = static_cast<std::byte>(response);
  target[2] = static_cast<std::byte>(sense.key);
  target[7] = static_cast<std::byte>(kFixedBytes - 8);
  put_big_endian(target, 12, static_cast<std::uint16_t>(sense.additional));
  put_key_specific(sense, target.subspan(15, 3));
  return kFixedBytes;
}

std::size_t encode_descriptors(const Sense& sense, std::span<std::byte> target) {
  target[0] = sense.deferred ? std::byte{0x73} : std::byte{0x72};
  target[1] = static_cast<std::byte>(sense.key);
  put_big_endian(target, 2, static_cast<std::uint16_t>(sense.additional));
  std::size_t end = 8;
  if (sense.information) {
    target[end + 1] = std::byte{0x0A};
    target[end + 2] = std::byte{0x80};  // VALID
    put_big_endian(target, end + 4, *sense.information);
    end += 12;
  }
  if (put_key_specific(sense, target.subspan(end + 4, 3))) {
    target[end] = std::byte{0x02};
    target[end + 1] = std::byte{0x06};
    end += 8;
  }
  target[7] = static_cast<std::byte>(end - 8);
  return end;
}

}  // namespace

bool is_away(Error error) {
  constexpr std::array kAway{Error::kNotReady, Error::kNotFound, Error::kClosed,
                             Error::kReset,    Error::kRefused,  Error::kUnreachable};
  return std::ranges::find(kAway, error) != kAway.end();
}

bool comes_back(Error error) {
  constexpr std::array kPassing{Error::kCancelled, Error::kTimedOut, Error::kReadOnly,
                                Error::kPermission, Error::kNoMemory};
  return is_away(error) || std::ranges::find(kPassing, error) != kPassing.end();
}

SenseData SenseData::encode(const Sense& sense, bool descriptor_format) {
  SenseData data;
  const std::size_t byte_count =
      descriptor_format ? encode_descriptors(sense, data.bytes_) : encode_fixed(sense, data.bytes_);
  data.byte_count_ = static_cast<std::uint8_t>(byte_count);
  return data;
}

}  // namespace sandbay::scsi
