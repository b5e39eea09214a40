// Access specifications: what is refused, and what comes of those that are not.
#include "lab/access.h"

#include <catch2/catch.hpp>
#include <map>

namespace sandbay::lab {
namespace {

AccessSpecification one_line(AccessLine line) { return {.name = "one", .lines = {line}}; }

}  // namespace

TEST_CASE("A sequential pattern goes on where it was and round at the end", "[lab][access]") {
  const AccessSpecification specification = one_line({.bytes = 4096});
  AccessPattern pattern(specification, 1024, 3 * 4096 + 512, 1);
  for (const std::uint64_t offset : {0U, 4096U, 8192U, 0U, 4096U}) {
    const Access access = pattern.next();
    CHECK(access.offset == 1024 + offset);
    CHECK(access.bytes == 4096);
    CHECK(access.read);
  }
}

TEST_CASE("Random places are aligned and within the part", "[lab][access]") {
  const AccessSpecification specification =
      one_line({.bytes = 8192, .random_percent = 100, .align_bytes = 8192});
  constexpr std::uint64_t kSpan = 16 * 8192;
  AccessPattern pattern(specification, 0, kSpan, 7);
  std::map<std::uint64_t, int> places;
  for (int i = 0; i < 2000; ++i) {
    const Access access = pattern.next();
    CHECK(access.offset % 8192 == 0);
    CHECK(access.offset + access.bytes <= kSpan);
    ++places[access.offset];
  }
  CHECK(places.size() == 16);
}

TEST_CASE("Shares of size, reads and random are kept", "[lab][access]") {
  const AccessSpecification specification{
      .name = "mix",
      .lines = {{.bytes = 512, .share_percent = 25, .read_percent = 60, .random_percent = 100},
                {.bytes = 1024, .share_percent = 75, .read_percent = 60, .random_percent = 100}}};
  AccessPattern pattern(specification, 0, 1 << 20, 3);
  int small = 0;
  int reads = 0;
  constexpr int kCount = 20000;
  for (int i = 0; i < kCount; ++i) {
    const Access access = pattern.next();
    small += access.bytes == 512 ? 1 : 0;
    reads += access.read ? 1 : 0;
  }
  CHECK(std::abs(small - kCount / 4) < kCount / 50);
  CHECK(std::abs(reads - kCount * 6 / 10) < kCount / 50);
}

TEST_CASE("A delay stands before each burst", "[lab][access]") {
  const AccessSpecification specification =
      one_line({.bytes = 512, .delay = std::chrono::milliseconds(5), .burst = 3});
  AccessPattern pattern(specification, 0, 1 << 20, 1);
  for (int i = 0; i < 9; ++i) {
    const Duration expected = i % 3 == 0 ? std::chrono::milliseconds(5) : Duration{};
    CHECK(pattern.next().delay == expected);
  }
}

TEST_CASE("The same seed makes the same requests", "[lab][access]") {
  const AccessSpecification specification =
      one_line({.bytes = 4096, .read_percent = 50, .random_percent = 50});
  AccessPattern one(specification, 0, 1 << 30, 5);
  AccessPattern other(specification, 0, 1 << 30, 5);
  for (int i = 0; i < 100; ++i) {
    const Access left = one.next();
    const Access right = other.next();
    CHECK(left.offset == right.offset);
    CHECK(left.read == right.read);
  }
}

TEST_CASE("What no specification can be is named", "[lab][access]") {
  CHECK(access_error(AccessLine{}).empty());
  CHECK(access_error(AccessLine{.bytes = 1000}).find("1000 bytes") != std::string::npos);
  CHECK(access_error(AccessLine{.bytes = 0}).find("multiple of 512") != std::string::npos);
  CHECK(access_error(AccessLine{.read_percent = 101}).find("101 % of reads") != std::string::npos);
  CHECK(access_error(AccessLine{.burst = 0}).find("burst") != std::string::npos);
  CHECK(access_error(AccessLine{.align_bytes = 100}).find("alignment") != std::string::npos);
  CHECK(access_error(AccessSpecification{}).find("no line") != std::string::npos);
  const AccessSpecification half = {.name = "half", .lines = {{.share_percent = 50}}};
  CHECK(access_error(half).find("50 % together") != std::string::npos);
}

TEST_CASE("Cycles step evenly or by a factor, and end at the end", "[lab][access]") {
  using Steps = std::vector<std::uint32_t>;
  CHECK(steps_of({.start = 1, .end = 32, .step = 2, .type = Cycle::Step::kExponential}) ==
        Steps{1, 2, 4, 8, 16, 32});
  CHECK(steps_of({.start = 1, .end = 10, .step = 4}) == Steps{1, 5, 9, 10});
  CHECK(steps_of({.start = 3, .end = 3, .step = 1}) == Steps{3});
  CHECK(cycle_error({.start = 0}).find("start of 0") != std::string::npos);
  CHECK(cycle_error({.start = 4, .end = 2}).find("before the start") != std::string::npos);
  CHECK(cycle_error({.step = 1, .type = Cycle::Step::kExponential}).find("step of 1") !=
        std::string::npos);
}

}  // namespace sandbay::lab
