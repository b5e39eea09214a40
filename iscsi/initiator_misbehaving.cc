// Sending what a well-behaved initiator never would, on request of a test (see
// initiator_misbehaviour.h) or by a rule. PDUs are put together whole, bent, and sent as they then
// are; this path copies, and is not taken by connections without a Misbehaviour and rules.
#include <algorithm>
#include <cassert>

#include "iscsi/digest.h"
#include "iscsi/initiator_outgoing.h"

namespace sandbay::iscsi {
namespace {

using Kind = Misbehaviour::Kind;

std::uint32_t value_or(const Misbehaviour& wrong, std::uint32_t otherwise) {
  return wrong.value != 0 ? wrong.value : otherwise;
}

bool data_out_only(Kind kind) {
  return kind == Kind::kWrongDataSn || kind == Kind::kWrongBufferOffset ||
         kind == Kind::kWrongTransferTag || kind == Kind::kWithholdDataOut;
}

void add_to_field(Bhs& bhs, std::size_t offset, std::uint32_t value) {
  put_big_endian<std::uint32_t>(bhs, offset, big_endian<std::uint32_t>(bhs, offset) + value);
}

}  // namespace

bool InitiatorOutgoing::matches(const Misbehaviour& wrong, const Bhs& bhs) const {
  if (wrong.count == 0 || pdus_ < wrong.at_pdu) return false;
  if (data_out_only(wrong.kind)) return opcode_of(bhs) == Opcode::kDataOut;
  if (wrong.kind == Kind::kSkipCmdSn) {
    return !is_immediate(bhs) && opcode_of(bhs) != Opcode::kDataOut;
  }
  if (wrong.kind == Kind::kCorruptHeaderDigest) return header_digest_;
  if (wrong.kind == Kind::kCorruptDataDigest) return data_digest_ && data_segment_length(bhs) != 0;
  return true;
}

std::vector<std::byte> InitiatorOutgoing::assemble(const Bhs& bhs,
                                                   std::span<const std::byte> data) const {
  std::vector<std::byte> pdu(bhs.begin(), bhs.end());
  if (header_digest_) {
    pdu.resize(pdu.size() + kDigestBytes);
    store_digest(header_digest(bhs), std::span(pdu).last<kDigestBytes>());
  }
  if (data.empty()) return pdu;
  const std::size_t start = pdu.size();
  pdu.insert(pdu.end(), data.begin(), data.end());
  pdu.resize(pdu.size() + padding_of(static_cast<std::uint32_t>(data.size())));
  if (data_digest_) {
    const std::uint32_t crc = crc32c(std::span(pdu).subspan(start));
    pdu.resize(pdu.size() + kDigestBytes);
    store_digest(crc, std::span(pdu).last<kDigestBytes>());
  }
  return pdu;
}

void InitiatorOutgoing::put_raw(std::span<const std::byte> bytes) {
  if (!bytes.empty()) std::ranges::copy(bytes, building_.grow(bytes.size()).begin());
}

void InitiatorOutgoing::release_held() {
  for (Held& held : held_) {
    if (held.until_pdu > pdus_ || held.bytes.empty()) continue;
    put_raw(held.bytes);
    held.bytes.clear();
  }
  std::erase_if(held_, [](const Held& held) { return held.bytes.empty(); });
}

// What concerns the finished PDU, not its fields.
void InitiatorOutgoing::apply(const Misbehaviour& wrong, std::vector<std::byte>& pdu, bool& drop) {
  switch (wrong.kind) {
    case Kind::kCorruptHeaderDigest:
      pdu[kBhsBytes] ^= std::byte{0x5A};
      break;
    case Kind::kCorruptDataDigest:
      pdu.back() ^= std::byte{0x5A};
      break;
    case Kind::kDuplicate:
      put_raw(pdu);
      break;
    case Kind::kSkipCmdSn:
    case Kind::kWithholdDataOut:
      drop = true;
      break;
    case Kind::kGarbage: {
      std::vector<std::byte> noise(value_or(wrong, 48));
      for (std::byte& byte : noise) byte = static_cast<std::byte>(executor_.random().next());
      put_raw(noise);
      break;
    }
    case Kind::kTruncate:
      pdu.resize(kBhsBytes / 2);
      building_.reset_behind = true;
      break;
    case Kind::kDrop:
      drop = true;
      building_.reset_behind = true;
      break;
    case Kind::kDelay:
      building_.delay = std::max(building_.delay, wrong.delay);
      break;
    case Kind::kHoldBack:
      held_.push_back({.bytes = pdu, .until_pdu = pdus_ + value_or(wrong, 1)});
      drop = true;
      break;
    case Kind::kStopReading:
      reading_stopped_ = true;
      break;
    case Kind::kWrongDataSn:
    case Kind::kWrongBufferOffset:
    case Kind::kWrongTransferTag:
    case Kind::kBadOpcode:
      break;
  }
}

PduInterference::Verdict InitiatorOutgoing::judge(const Bhs& bhs, std::span<std::byte> data) {
  if (interference_ == nullptr || interference_->quiet()) return {};
  PduInterference::Verdict verdict =
      interference_->judge(bhs, {.sent = true,
                                 .data = !data.empty(),
                                 .header_digest = header_digest_,
                                 .data_digest = data_digest_ && !data.empty()});
  if (verdict.fate == PduInterference::Fate::kAltered) data[data.size() / 2] ^= std::byte{1};
  return verdict;
}

void InitiatorOutgoing::carry_out(const PduInterference::Verdict& verdict, std::size_t data_bytes,
                                  std::vector<std::byte>& pdu, bool& drop) {
  using Fate = PduInterference::Fate;
  building_.delay = std::max(building_.delay, verdict.delay);
  building_.piece_bytes = std::max(building_.piece_bytes, verdict.piece_bytes);
  const std::size_t header_bytes = kBhsBytes + (header_digest_ ? kDigestBytes : 0);
  switch (verdict.fate) {
    case Fate::kPass:
    case Fate::kAltered:
      return;
    case Fate::kLose:
      drop = true;
      return;
    case Fate::kHeaderDigest:
      return apply({.kind = Kind::kCorruptHeaderDigest}, pdu, drop);
    case Fate::kDataDigest:
      return apply({.kind = Kind::kCorruptDataDigest}, pdu, drop);
    case Fate::kDamaged:
      pdu[header_bytes + data_bytes / 2] ^= std::byte{1};
      return;
    case Fate::kTwice:
      return apply({.kind = Kind::kDuplicate}, pdu, drop);
    case Fate::kCut:
      return apply({.kind = Kind::kTruncate}, pdu, drop);
    case Fate::kClose:
    case Fate::kReset:
      return apply({.kind = Kind::kDrop}, pdu, drop);
  }
}

void InitiatorOutgoing::add_misbehaving(Bhs bhs, std::vector<std::byte> data) {
  ++pdus_;
  if (building_.reset_behind) return;  // The connection ends before this one.
  std::vector<Misbehaviour*> now;
  for (Misbehaviour& wrong : misbehaviour_) {
    if (matches(wrong, bhs)) now.push_back(&wrong);
  }
  for (const Misbehaviour* wrong : now) {
    if (wrong->kind == Kind::kWrongDataSn) add_to_field(bhs, 36, value_or(*wrong, 1));
    if (wrong->kind == Kind::kWrongBufferOffset) add_to_field(bhs, 40, value_or(*wrong, 4));
    if (wrong->kind == Kind::kWrongTransferTag) bhs[20] ^= std::byte{0xFF};
    if (wrong->kind == Kind::kBadOpcode) bhs[0] = (bhs[0] & std::byte{0x40}) | std::byte{0x0F};
  }
  const PduInterference::Verdict verdict = judge(bhs, data);
  std::vector<std::byte> pdu = assemble(bhs, data);
  bool drop = false;
  carry_out(verdict, data.size(), pdu, drop);
  for (Misbehaviour* wrong : now) {
    --wrong->count;
    apply(*wrong, pdu, drop);
  }
  if (!drop) put_raw(pdu);
  release_held();
  if (!building_.empty()) wake();
}

}  // namespace sandbay::iscsi
