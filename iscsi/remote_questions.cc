// Questions and how their answers are read.
#include "iscsi/remote_questions.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <utility>

#include "iscsi/initiator_url.h"
#include "runtime/byte_order.h"

namespace sandbay::iscsi {
namespace {

constexpr Duration kAnswerTime = std::chrono::seconds(10);
constexpr unsigned kMostAttentionsAtOnce = 16;
constexpr std::size_t kPageBytes = 252;
constexpr std::size_t kMostLuns = 256;
constexpr std::size_t kLunListBytes = 8 + 8 * kMostLuns;

using Bytes = std::vector<std::byte>;

struct Question {
  std::uint32_t lun = 0;
  std::array<std::byte, 16> cdb{};
  std::size_t answer_bytes = 0;
  bool* attention = nullptr;
};

// As many bytes as came.
Task<Result<Bytes>> ask(InitiatorSession* session, Question question) {
  for (unsigned count = 0;; ++count) {
    ScsiRequest request{.lun = encode_lun(question.lun), .cdb = question.cdb};
    request.timeout = kAnswerTime;
    if (question.answer_bytes > 0) {
      request.data_in = co_await session->home().buffers().allocate(question.answer_bytes);
    }
    const InitiatorSession::Reply reply = co_await session->execute(std::move(request));
    const ScsiResult& result = reply.result;
    if (result.good()) {
      Bytes bytes(question.answer_bytes);
      if (!bytes.empty()) reply.data_in.copy_to(bytes);
      bytes.resize(std::min<std::size_t>(bytes.size(), result.data_in_bytes));
      co_return bytes;
    }
    const bool attention = result.error == Error::kNone &&
                           result.status == scsi::Status::kCheckCondition &&
                           result.sense_key() == scsi::SenseKey::kUnitAttention;
    if (attention && question.attention != nullptr) *question.attention = true;
    if (!attention || count == kMostAttentionsAtOnce) {
      co_return std::unexpected(completion_of(result).error);
    }
  }
}

Question inquiry(std::uint32_t lun, bool vital, std::uint8_t page) {
  Question question{.lun = lun, .answer_bytes = kPageBytes};
  question.cdb[0] = std::byte{0x12};
  question.cdb[1] = vital ? std::byte{0x01} : std::byte{0x00};
  question.cdb[2] = std::byte{page};
  question.cdb[4] = std::byte{kPageBytes};
  return question;
}

// A page of vital product data, filled with zeros to `least` bytes; empty: the unit has none.
Task<Result<Bytes>> ask_page(InitiatorSession* session, std::uint32_t lun, std::uint8_t page,
                             std::size_t least) {
  Result<Bytes> bytes = co_await ask(session, inquiry(lun, true, page));
  if (!bytes.has_value() && bytes.error() != Error::kUnsupported) co_return bytes;
  Bytes content = bytes.has_value() ? std::move(*bytes) : Bytes();
  if (content.size() < 4 || content[1] != std::byte{page}) content.clear();
  content.resize(std::max(content.size(), least));
  co_return content;
}

std::string text_of(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte each : bytes) {
    const auto value = std::to_integer<unsigned char>(each);
    text += value >= 0x20 && value < 0x7F ? static_cast<char>(value) : ' ';
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

// VPD 83h: the first NAA designator of the unit itself that has sixteen bytes.
std::array<std::uint8_t, 16> naa_in(std::span<const std::byte> page) {
  std::array<std::uint8_t, 16> naa{};
  const std::size_t end =
      std::min<std::size_t>(page.size(), std::size_t{4} + big_endian<std::uint16_t>(page, 2));
  for (std::size_t at = 4; at + 4 <= end;) {
    const auto length = std::to_integer<std::size_t>(page[at + 3]);
    const auto kind = std::to_integer<unsigned>(page[at + 1]) & 0x3FU;
    if (kind == 0x03 && length == naa.size() && at + 4 + length <= end) {
      for (std::size_t i = 0; i < length; ++i) {
        naa[i] = std::to_integer<std::uint8_t>(page[at + 4 + i]);
      }
      break;
    }
    at += 4 + length;
  }
  return naa;
}

std::uint32_t or_any(std::uint32_t most) { return most == 0 ? ~0U : most; }

Task<Error> ask_names(InitiatorSession* session, RemoteUnitFacts* facts) {
  const auto standard = co_await ask(session, inquiry(facts->lun_number, false, 0));
  if (!standard.has_value()) co_return standard.error();
  // Peripheral qualifier: something else than a unit that is there.
  if (standard->size() < 36 || (*standard)[0] != std::byte{0}) co_return Error::kNotReady;
  facts->product = text_of(std::span(*standard).subspan(16, 16));
  facts->revision = text_of(std::span(*standard).subspan(32, 4));
  const auto serial = co_await ask_page(session, facts->lun_number, 0x80, 4);
  if (!serial.has_value()) co_return serial.error();
  facts->serial = text_of(std::span(*serial).subspan(4));
  const auto designators = co_await ask_page(session, facts->lun_number, 0x83, 4);
  if (!designators.has_value()) co_return designators.error();
  facts->naa = naa_in(*designators);
  co_return Error::kNone;
}

Task<Error> ask_capacity(InitiatorSession* session, RemoteUnitFacts* facts) {
  Question question{.lun = facts->lun_number, .answer_bytes = 32};
  question.cdb[0] = std::byte{0x9E};
  question.cdb[1] = std::byte{0x10};
  question.cdb[13] = std::byte{32};
  const auto bytes = co_await ask(session, question);
  if (!bytes.has_value()) co_return bytes.error();
  if (bytes->size() < 16) co_return Error::kInvalid;
  Geometry& geometry = facts->geometry;
  const auto last = big_endian<std::uint64_t>(*bytes, 0);
  geometry.block_bytes = big_endian<std::uint32_t>(*bytes, 8);
  const auto exponent = std::to_integer<unsigned>((*bytes)[13]) & 0x0FU;
  geometry.physical_block_bytes = geometry.block_bytes << exponent;
  const auto flags = std::to_integer<unsigned>((*bytes)[14]);
  geometry.unmap = (flags & 0x80U) != 0;
  geometry.unmap_zeroes = (flags & 0x40U) != 0;
  const bool sensible = (geometry.block_bytes == 512 || geometry.block_bytes == 4096) &&
                        exponent <= 8 && last < (std::uint64_t{1} << 55U);
  if (!sensible) co_return Error::kInvalid;
  geometry.block_count = last + 1;
  co_return Error::kNone;
}

Task<Error> ask_limits(InitiatorSession* session, RemoteUnitFacts* facts) {
  const auto limits = co_await ask_page(session, facts->lun_number, 0xB0, 64);
  if (!limits.has_value()) co_return limits.error();
  const std::span<const std::byte> page = *limits;
  Geometry& geometry = facts->geometry;
  facts->most_transfer_blocks = or_any(big_endian<std::uint32_t>(page, 8));
  geometry.optimal_io_blocks = big_endian<std::uint32_t>(page, 12);
  facts->most_unmap_blocks = or_any(big_endian<std::uint32_t>(page, 20));
  geometry.unmap_granularity_blocks = std::max(1U, big_endian<std::uint32_t>(page, 28));
  const auto same = big_endian<std::uint64_t>(page, 36);
  facts->most_write_same_blocks = std::min<std::uint64_t>(same == 0 ? ~0U : same, ~0U);
  const auto provisioning = co_await ask_page(session, facts->lun_number, 0xB2, 8);
  if (!provisioning.has_value()) co_return provisioning.error();
  const bool unmaps = ((*provisioning)[5] & std::byte{0x80}) != std::byte{0};  // LBPU
  geometry.unmap = geometry.unmap && unmaps;
  geometry.unmap_zeroes = geometry.unmap_zeroes && unmaps;
  const auto medium = co_await ask_page(session, facts->lun_number, 0xB1, 8);
  if (!medium.has_value()) co_return medium.error();
  geometry.rotational = big_endian<std::uint16_t>(*medium, 4) > 1;
  co_return Error::kNone;
}

}  // namespace

Task<Result<std::vector<std::uint32_t>>> ask_luns(InitiatorSession* session) {
  Question question{.answer_bytes = kLunListBytes};
  question.cdb[0] = std::byte{0xA0};
  put_big_endian(std::span<std::byte>(question.cdb), 6, std::uint32_t{kLunListBytes});
  const auto bytes = co_await ask(session, question);
  if (!bytes.has_value()) co_return std::unexpected(bytes.error());
  if (bytes->size() < 8) co_return std::unexpected(Error::kInvalid);
  const std::size_t end =
      std::min<std::size_t>(bytes->size(), 8 + std::size_t{big_endian<std::uint32_t>(*bytes, 0)});
  std::vector<std::uint32_t> luns;
  for (std::size_t at = 8; at + 8 <= end; at += 8) {
    const unsigned first = big_endian<std::uint16_t>(*bytes, at);
    const bool single = first < 0x8000 && big_endian<std::uint32_t>(*bytes, at + 2) == 0;
    if (single) luns.push_back(first & 0x3FFFU);  // Peripheral or flat addressing.
  }
  co_return luns;
}

// SPC-4 clause 7.8.7, and SBC-3 clause 6.4.5: without WCE nothing is cached that could be lost.
Task<Error> ask_caches(InitiatorSession* session, std::uint32_t lun, Geometry* geometry) {
  const auto page = co_await ask_page(session, lun, 0x86, 8);
  if (!page.has_value()) co_return page.error();
  const auto support = std::to_integer<unsigned>((*page)[6]);
  Question question{.lun = lun, .answer_bytes = kPageBytes};
  question.cdb[0] = std::byte{0x1A};
  question.cdb[1] = std::byte{0x08};  // DBD
  question.cdb[2] = std::byte{0x08};
  question.cdb[4] = std::byte{kPageBytes};
  const auto mode = co_await ask(session, question);
  if (!mode.has_value() && mode.error() != Error::kUnsupported) co_return mode.error();
  const bool told = mode.has_value() && mode->size() > 6;
  const bool writes_cached = !told || ((*mode)[6] & std::byte{0x04}) != std::byte{0};
  geometry->read_only = told && ((*mode)[2] & std::byte{0x80}) != std::byte{0};
  // A unit that says nothing of its caches may have one.
  geometry->volatile_cache = writes_cached && (support & 0x03U) != 0x02U;
  geometry->non_volatile_cache = (support & 0x02U) != 0;
  co_return Error::kNone;
}

Task<Result<RemoteUnitFacts>> ask_facts(InitiatorSession* session, std::uint32_t lun) {
  RemoteUnitFacts facts{.lun_number = lun};
  Error error = co_await ask_names(session, &facts);
  if (error == Error::kNone) error = co_await ask_capacity(session, &facts);
  if (error == Error::kNone) error = co_await ask_limits(session, &facts);
  if (error == Error::kNone) error = co_await ask_caches(session, lun, &facts.geometry);
  if (error != Error::kNone) co_return std::unexpected(error);
  facts.geometry.maximum_io_blocks =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(facts.most_transfer_blocks, ~0U));
  co_return facts;
}

Task<Error> ask_ready(InitiatorSession* session, std::uint32_t lun, bool* attention) {
  const auto answer = co_await ask(session, {.lun = lun, .attention = attention});
  co_return answer.has_value() ? Error::kNone : answer.error();
}

}  // namespace sandbay::iscsi
