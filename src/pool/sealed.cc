// Checksums of stored values, and the probes on their way.
#include "pool/sealed.h"

#include <array>
#include <cstddef>
#include <span>

#include "runtime/byte_order.h"
#include "runtime/crc32c.h"
#include "runtime/probe.h"

namespace sandbay::pool {

namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::uint32_t checksum(std::string_view key, std::string_view value) {
  Crc32c crc;
  crc.update(bytes_of(key));
  crc.update(bytes_of(value));
  return crc.value();
}

void pass(std::string_view probe, std::string_view key, std::string& stored) {
  const ProbeVerdict verdict = Probe::ask(
      {.name = probe, .object = key, .byte_count = stored.size(), .bytes = bytes_of(stored)});
  if (verdict.action != kFlipBit || stored.empty()) return;
  const std::uint64_t flipped = verdict.argument % (8 * stored.size());
  const auto letter = static_cast<unsigned char>(stored[flipped / 8]);
  stored[flipped / 8] = static_cast<char>(letter ^ 1U << (flipped % 8));
}

}  // namespace

std::string sealed(std::string_view key, std::string value) {
  std::array<std::byte, kSealBytes> seal{};
  put_little_endian(std::span(seal), 0, checksum(key, value));
  value.append(reinterpret_cast<const char*>(seal.data()), seal.size());
  if (Probe::armed()) [[unlikely]] {
    pass("map.write", key, value);
  }
  return value;
}

std::optional<std::string> unsealed(std::string_view key, std::string stored) {
  if (Probe::armed()) [[unlikely]] {
    pass("map.read", key, stored);
  }
  if (stored.size() < kSealBytes) return std::nullopt;
  const std::size_t end = stored.size() - kSealBytes;
  const auto seal = little_endian<std::uint32_t>(bytes_of(stored), end);
  if (seal != checksum(key, std::string_view(stored).substr(0, end))) return std::nullopt;
  stored.resize(end);
  return stored;
}

}  // namespace sandbay::pool
