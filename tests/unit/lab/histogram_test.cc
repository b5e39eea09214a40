// The log-linear histogram against sorted samples.
#include <catch2/catch.hpp>

#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "lab/histogram.h"

namespace sandbay::lab {

TEST_CASE("Buckets follow one another without a gap", "[lab][histogram]") {
  std::uint64_t previous_end = 0;
  for (std::size_t bucket = 1; bucket < Histogram::kBuckets; ++bucket) {
    const std::uint64_t end = Histogram::upper_end(bucket);
    REQUIRE(end > previous_end);
    REQUIRE(Histogram::bucket_of(previous_end + 1) == bucket);
    REQUIRE(Histogram::bucket_of(end) == bucket);
    previous_end = end;
  }
  CHECK(Histogram::bucket_of(0) == 0);
  CHECK(Histogram::bucket_of(~std::uint64_t{0}) == Histogram::kBuckets - 1);
}

TEST_CASE("A bucket is at most 1.6 per cent wide", "[lab][histogram]") {
  for (std::size_t bucket = Histogram::kSub; bucket < Histogram::kBuckets; ++bucket) {
    const double low = static_cast<double>(Histogram::upper_end(bucket - 1) + 1);
    const double high = static_cast<double>(Histogram::upper_end(bucket));
    REQUIRE((high - low) / low <= 1.0 / 64);
  }
}

TEST_CASE("Quantiles are those of the sorted samples, to the bucket", "[lab][histogram]") {
  REQUIRE(rc::check("quantiles", [] {
    auto samples = *rc::gen::nonEmpty(rc::gen::container<std::vector<std::uint64_t>>(
        rc::gen::inRange<std::uint64_t>(0, 10'000'000'000)));
    const auto histogram = std::make_unique<Histogram>();
    std::uint64_t sum = 0;
    for (const std::uint64_t sample : samples) {
      histogram->record(sample);
      sum += sample;
    }
    std::ranges::sort(samples);
    RC_ASSERT(histogram->count() == samples.size());
    RC_ASSERT(histogram->smallest() == samples.front());
    RC_ASSERT(histogram->largest() == samples.back());
    RC_ASSERT(histogram->mean() == static_cast<double>(sum) / static_cast<double>(samples.size()));
    for (const double share : {0.0, 0.5, 0.9, 0.99, 0.999, 1.0}) {
      const auto wanted =
          static_cast<std::size_t>(std::ceil(share * static_cast<double>(samples.size())));
      const std::uint64_t exact = samples[std::max<std::size_t>(wanted, 1) - 1];
      const std::uint64_t told = histogram->quantile(share);
      RC_ASSERT(told >= exact);
      RC_ASSERT(told <=
                std::min(Histogram::upper_end(Histogram::bucket_of(exact)), samples.back()));
    }
  }));
}

TEST_CASE("Adding two histograms is recording both", "[lab][histogram]") {
  const auto one = std::make_unique<Histogram>();
  const auto two = std::make_unique<Histogram>();
  const auto both = std::make_unique<Histogram>();
  for (std::uint64_t value = 1; value < 1'000'000; value = value * 3 + 1) {
    one->record(value);
    two->record(value * 2);
    both->record(value);
    both->record(value * 2);
  }
  one->add(*two);
  CHECK(one->count() == both->count());
  CHECK(one->mean() == both->mean());
  CHECK(one->smallest() == both->smallest());
  CHECK(one->largest() == both->largest());
  CHECK(one->quantile(0.5) == both->quantile(0.5));
}

TEST_CASE("An empty histogram is all zeros", "[lab][histogram]") {
  const auto histogram = std::make_unique<Histogram>();
  CHECK(histogram->quantile(0.99) == 0);
  CHECK(histogram->mean() == 0);
  CHECK(histogram->smallest() == 0);
  CHECK(histogram->largest() == 0);
}

}  // namespace sandbay::lab
