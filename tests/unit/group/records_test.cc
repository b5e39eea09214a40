// Records with numbers that no daemon writes: an import may bring any. Each decodes or is refused.
#include "group/records.h"

#include <catch2/catch.hpp>

#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "group/pool_records.h"

namespace sandbay::group {
namespace {

using nlohmann::json;

const json kNumbers[] = {0,
                         1,
                         511,
                         -1,
                         1.5,
                         std::uint64_t{1} << 32,
                         std::uint64_t{1} << 52,
                         std::uint64_t{1} << 63,
                         std::numeric_limits<std::uint64_t>::max()};

// `decode` sees the record with each number in the place of each of its own.
void try_numbers(const std::string& record, const std::function<void(std::string)>& decode) {
  const json whole = json::parse(record);
  for (const auto& [key, value] : whole.items()) {
    if (!value.is_number()) continue;
    for (const json& number : kNumbers) {
      json changed = whole;
      changed[key] = number;
      CAPTURE(key, number.dump());
      decode(changed.dump());
    }
  }
}

}  // namespace

TEST_CASE("A volume's record keeps what its LUN says of itself") {
  VolumeRecord volume;
  VolumeSpecification& s = volume.specification;
  s.name = "v";
  s.backing = Backing::kMemory;
  s.size_bytes = 1 << 20;
  s.eui64 = parse_eui64("0025ba0000000001");
  s.removable = true;
  s.rotation = 15000;
  s.unmap_limit_bytes = 1 << 20;
  s.write_same_limit_bytes = 512;
  const auto decoded = decode_volume(encode(volume));
  REQUIRE(decoded.has_value());
  CHECK(decoded->specification.eui64 == s.eui64);
  CHECK(decoded->specification.removable);
  CHECK(decoded->specification.rotation == 15000);
  CHECK(decoded->specification.unmap_limit_bytes == 1 << 20);
  CHECK(decoded->specification.write_same_limit_bytes == 512);

  const auto changed = [&volume](const char* key, const json& value) {
    json record = json::parse(encode(volume));
    record[key] = value;
    return decode_volume(record.dump()).has_value();
  };
  CHECK(changed("rotation", 1));
  CHECK_FALSE(changed("rotation", 2));
  CHECK_FALSE(changed("rotation", 65535));
  CHECK_FALSE(changed("unmap_limit", 513));
  CHECK_FALSE(changed("write_same_limit", -512));
  CHECK_FALSE(changed("eui64", "eui.0000000000000000"));
  try_numbers(encode(volume), [](const std::string& text) { (void)decode_volume(text); });
}

TEST_CASE("A volume's record of an older version gets the defaults of newer keys") {
  VolumeRecord volume;
  volume.specification.name = "v";
  volume.specification.backing = Backing::kMemory;
  volume.specification.size_bytes = 1 << 20;
  json old = json::parse(encode(volume));
  for (const char* key : {"eui64", "removable", "rotation", "unmap_limit", "write_same_limit"}) {
    CHECK_FALSE(old.contains(key));  // A default changes no record that is stored already.
  }
  const auto decoded = decode_volume(old.dump());
  REQUIRE(decoded.has_value());
  CHECK_FALSE(decoded->specification.eui64.has_value());
  CHECK_FALSE(decoded->specification.removable);
  CHECK(decoded->specification.rotation == 0);
  CHECK(decoded->specification.unmap_limit_bytes == 0);
  CHECK(decoded->specification.write_same_limit_bytes == 0);
}

TEST_CASE("A volume's record with a block of no size is refused", "[X1]") {
  VolumeRecord volume;
  volume.specification.name = "v";
  volume.specification.backing = Backing::kMemory;
  volume.specification.size_bytes = 1 << 20;
  unsigned refused = 0;
  try_numbers(encode(volume), [&refused](const std::string& text) {
    const auto decoded = decode_volume(text);
    refused += decoded.has_value() ? 0 : 1;
    if (!decoded.has_value()) return;
    CHECK(decoded->specification.block_bytes >= 512);
    CHECK(decoded->specification.size_bytes != std::numeric_limits<std::uint64_t>::max() - 1);
  });
  CHECK(refused > 10);
}

TEST_CASE("A pool's record says that no block has been seen yet, or has a number that fits",
          "[X1]") {
  PoolRecord pool;
  pool.name = "p";
  pool.page_bytes = 1 << 20;
  pool.block_bytes = 0;
  CHECK(decode_pool(encode(pool)).has_value());
  json changed = json::parse(encode(pool));
  changed["block_size"] = std::uint64_t{1} << 52;
  CHECK_FALSE(decode_pool(changed.dump()).has_value());
}

TEST_CASE("A record's number that does not fit is refused, not cut", "[X1]") {
  const std::string text = encode(EventInfo{.number = 7});
  REQUIRE(decode_event(text).has_value());
  json changed = json::parse(text);
  changed["number"] = -1;
  CHECK_FALSE(decode_event(changed.dump()).has_value());
  changed["number"] = 7.5;
  CHECK_FALSE(decode_event(changed.dump()).has_value());
}

}  // namespace sandbay::group
