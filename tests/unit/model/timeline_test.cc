// Timelines, ports, controllers and hosts: against a naive calendar, and against limits that can be
// computed by hand.
#include "model/timeline.h"

#include <rapidcheck.h>
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <vector>

#include "model/controller.h"
#include "model/drive_model.h"
#include "model/exchange.h"
#include "model/host.h"
#include "model/port.h"

namespace sandbay::testing {
namespace {

using model::Controller;
using model::ControllerProfile;
using model::Exchange;
using model::ExchangeParameters;
using model::Host;
using model::HostProfile;
using model::Port;
using model::PortProfile;
using model::Timeline;
using std::chrono::microseconds;
using std::chrono::milliseconds;

TimePoint at(std::int64_t nanoseconds) { return TimePoint(Duration(nanoseconds)); }
double in_seconds(TimePoint time) {
  return static_cast<double>(time.time_since_epoch().count()) / 1e9;
}

}  // namespace

TEST_CASE("a timeline books the first gap that fits", "[model][timeline]") {
  REQUIRE(rc::check("calendar", [] {
    const auto jobs = *rc::gen::container<std::vector<std::pair<int, int>>>(
        rc::gen::pair(rc::gen::inRange(0, 120), rc::gen::inRange(0, 9)));
    Timeline timeline;
    std::set<int> taken;  // Nanosecond by nanosecond.
    std::int64_t sum = 0;
    for (const auto& [arrival, length] : jobs) {
      int begin = arrival;
      for (int i = 0; i < length; ++i) {
        if (!taken.contains(begin + i)) continue;
        begin += i + 1;
        i = -1;
      }
      for (int i = 0; i < length; ++i) taken.insert(begin + i);
      sum += length;
      // Without length there is nothing to wait for but the job in which it falls.
      const TimePoint end = timeline.book(at(arrival), Duration(length));
      if (length > 0) RC_ASSERT(end == at(begin + length));
    }
    RC_ASSERT(timeline.booked() == Duration(sum));
  }));
}

TEST_CASE("a timeline forgets old gaps, never books twice", "[model][timeline]") {
  Timeline timeline;
  for (int i = 0; i < 1000; ++i) {
    CHECK(timeline.book(at(i * 10), Duration(3)) == at(i * 10 + 3));
  }
  // The gaps of long ago are gone: what comes that late waits for the first that is known.
  const TimePoint late = timeline.book(at(1), Duration(3));
  CHECK(late > at(9000));
  CHECK(late < at(9990));
  CHECK(timeline.free_after() == at(9993));
}

// The calendar as a list of runs of which all move whenever one is forgotten.
class NaiveTimeline {
 public:
  TimePoint book(TimePoint arrival, Duration length) {
    TimePoint begin = arrival;
    if (runs_.size() > Timeline::kMostGaps && runs_.front().second > arrival) {
      begin = runs_.front().second;
    }
    for (const auto& [from, until] : runs_) {
      if (until > begin && begin + length > from) begin = until;
    }
    runs_.emplace_back(begin, begin + length);
    std::ranges::sort(runs_);
    for (std::size_t i = 1; i < runs_.size(); ++i) {
      if (runs_[i - 1].second != runs_[i].first) continue;
      runs_[i - 1].second = runs_[i].second;
      runs_.erase(runs_.begin() + static_cast<std::ptrdiff_t>(i--));
    }
    if (runs_.size() > Timeline::kMostGaps + 1) runs_.erase(runs_.begin());
    return begin + length;
  }

 private:
  std::vector<std::pair<TimePoint, TimePoint>> runs_;
};

TEST_CASE("a timeline of many gaps is what a naive one is", "[model][timeline]") {
  REQUIRE(rc::check("twin", [] {
    const auto jobs = *rc::gen::container<std::vector<std::pair<int, int>>>(
        1000, rc::gen::pair(rc::gen::inRange(0, 400), rc::gen::inRange(1, 7)));
    Timeline timeline;
    NaiveTimeline naive;
    int clock = 0;
    for (const auto& [late, length] : jobs) {
      clock += 4;
      const TimePoint arrival = at(late < 300 ? clock : clock + late - 500);
      RC_ASSERT(timeline.book(arrival, Duration(length)) == naive.book(arrival, Duration(length)));
    }
  }));
}

TEST_CASE("a port carries what its frames leave", "[model][port]") {
  // 125 MB/s * 1460 / 1538 * 8192 / 8240 = 118.0 MB/s = 112.5 MiB/s.
  Port gigabit({});
  const auto payload_rate = [](const Port& port, std::uint64_t pdu_bytes) {
    constexpr std::uint64_t kBytes = std::uint64_t{1} << 30;
    return static_cast<double>(kBytes) /
           std::chrono::duration<double>(port.transfer_length(kBytes, pdu_bytes)).count();
  };
  CHECK(payload_rate(gigabit, 8192) / 1e6 == Approx(118.0).epsilon(0.001));
  // 10 Gbit/s with timestamps: 1250 * 1448 / 1538 = 1176.9 MB/s before the headers of PDUs.
  const Port ten({.rate = 1'250'000'000, .packet_headers = 52, .pdu_header = 0});
  CHECK(payload_rate(ten, 65536) / 1e6 == Approx(1176.9).epsilon(0.001));
  // Larger frames leave more.
  const Port jumbo({.mtu = 9000});
  CHECK(payload_rate(jumbo, 8192) > payload_rate(gigabit, 8192) * 1.04);

  TimePoint end;
  for (int i = 0; i < 1000; ++i) end = gigabit.send(at(0), 65536, 8192);
  CHECK(65536 * 1000 / in_seconds(end) / 1e6 == Approx(118.0).epsilon(0.005));
  // The other direction is free, and a command alone is one frame and the way.
  Port far({.latency = microseconds(70)});
  static_cast<void>(far.send(at(0), 1 << 20, 8192));
  CHECK(far.receive(at(0), 0, 8192) == at(0) + microseconds(70) + Duration((48 + 78) * 8));
  Port half({.full_duplex = false});
  const TimePoint sent = half.send(at(0), 1 << 20, 8192);
  CHECK(half.receive(at(0), 0, 8192) > sent);
  CHECK(half.receiving() > milliseconds(8));
  CHECK(half.sending() == Duration(0));
  // The least frame of Ethernet.
  CHECK(Port({.pdu_header = 0}).wire_bytes(1, 8192) == 84);
}

TEST_CASE("a controller costs processor time, bandwidth and the mirror", "[model][controller]") {
  Controller controller({.processors = 2,
                         .read_request = microseconds(50),
                         .write_request = microseconds(80),
                         .read_mib = milliseconds(1),
                         .mirror_latency = microseconds(30),
                         .mirror_rate = 200'000'000});
  CHECK(controller.accept(false, 0, at(0)) == at(50'000));
  CHECK(controller.accept(false, 1 << 20, at(0)) == at(1'050'000));
  // The first processor is free first.
  CHECK(controller.accept(false, 0, at(0)) == at(100'000));
  const TimePoint write = controller.accept(true, 1'000'000, at(10'000'000));
  CHECK(write == at(10'000'000 + 80'000 + 5'000'000 + 30'000));
  CHECK(controller.answer(true, 1'000'000, write) == write);
  CHECK(controller.answer(false, 1'000'000, write) == write);
  CHECK(controller.processing() == microseconds(50 + 1050 + 50 + 80));

  Controller capped({.read_rate = 400'000'000, .total_rate = 500'000'000});
  TimePoint end;
  for (int i = 0; i < 100; ++i) end = capped.answer(false, 1'000'000, at(0));
  CHECK(100e6 / in_seconds(end) == Approx(400e6).epsilon(0.01));
  for (int i = 0; i < 100; ++i) static_cast<void>(capped.accept(true, 1'000'000, at(0)));
  for (int i = 0; i < 100; ++i) end = std::max(end, capped.answer(false, 1'000'000, at(0)));
  CHECK(300e6 / in_seconds(end) <= 500e6 * 1.001);
  CHECK(model::profile_error(ControllerProfile{.processors = 0}).find("processors") == 0);
}

TEST_CASE("a host's requests cost what its adapters make of them", "[model][host]") {
  const HostProfile profile{.request_times = {microseconds(30), microseconds(22)},
                            .read_rate = 100'000'000};
  Host one(profile, 1);
  Host two(profile, 2);
  Host eight(profile, 8);
  TimePoint end_of_one;
  TimePoint end_of_two;
  for (int i = 0; i < 1000; ++i) {
    end_of_one = one.issue(at(0));
    end_of_two = two.issue(at(0));
  }
  CHECK(end_of_one == at(30'000'000));
  CHECK(end_of_two == at(22'000'000));
  CHECK(eight.issue(at(0)) == at(22'000));
  CHECK(one.complete(false, 1'000'000, at(0)) == at(10'000'000));
  CHECK(one.complete(true, 1'000'000, at(0)) == at(0));
  CHECK_FALSE(model::profile_error(HostProfile{}).empty());
  CHECK(model::profile_error(HostProfile{.request_times = {{}}, .latency = -microseconds(1)}) ==
        "latency must be 0 to 1s");
}

TEST_CASE("an exchange waits for R2Ts as the session's parameters say", "[model][exchange]") {
  const PortProfile wire{.latency = microseconds(50)};
  // What the GigaStor negotiates: nothing unsolicited, bursts of 256 KiB, one R2T.
  const ExchangeParameters strict{.immediate_data = false};
  const std::uint64_t mib = 1 << 20;
  const auto alone = [&](const ExchangeParameters& parameters, std::uint64_t bytes) {
    Port adapter(wire);
    Port target(wire);
    Exchange exchange(adapter, target, parameters);
    const TimePoint end = exchange.write(at(0), bytes);
    return std::pair{end - at(0), exchange.r2ts()};
  };
  // The command, then four times an R2T and a burst, each of them over two ports' latencies: the
  // second one is that of the receiving port.
  const Port port(wire);
  const Duration small = port.transfer_length(0, 8192);
  const Duration way = microseconds(100);
  const Duration burst = port.transfer_length(262144, 8192);
  CHECK(alone(strict, mib) ==
        std::pair{small + way + 4 * (small + way + burst + way), std::uint64_t{4}});
  CHECK(alone(strict, 512).second == 1);
  CHECK(alone(strict, 262145).second == 2);
  CHECK(alone({.immediate_data = true}, 8192).second == 0);
  CHECK(alone({.immediate_data = true}, 8193).second == 1);
  CHECK(alone({.initial_r2t = false}, 65536) ==
        std::pair{port.transfer_length(65536, 8192) + way, std::uint64_t{0}});
  // More R2Ts at a time hide the way.
  const Duration hidden = alone({.immediate_data = false, .outstanding_r2ts = 4}, mib).first;
  CHECK(hidden < small + way + small + way + 4 * burst + way + microseconds(10));
  const ExchangeParameters slow{.immediate_data = false,
                                .target_turnaround = microseconds(70),
                                .host_turnaround = microseconds(30)};
  CHECK(alone(slow, mib).first == alone(strict, mib).first + 4 * microseconds(100));
}

TEST_CASE("connections share their ports", "[model][exchange]") {
  // Two hosts read through one port of the target: it is the limit. Writes do not slow them.
  Port left(PortProfile{});
  Port right(PortProfile{});
  Port target(PortProfile{});
  Exchange one(left, target, {.initial_r2t = false});
  Exchange two(right, target, {.initial_r2t = false});
  TimePoint end;
  for (int i = 0; i < 200; ++i) {
    end = std::max(end, one.answer(at(0), 65536));
    end = std::max(end, two.answer(at(0), 65536));
  }
  CHECK(400 * 65536 / in_seconds(end) / 1e6 == Approx(118).epsilon(0.01));
  TimePoint written;
  for (int i = 0; i < 200; ++i) written = std::max(written, one.write(at(0), 65536));
  CHECK(200 * 65536 / in_seconds(written) / 1e6 == Approx(118).epsilon(0.01));
  CHECK(one.answer(end, 0) == end + target.transfer_length(0, 8192));
  CHECK(model::profile_error(ExchangeParameters{.first_burst = 65536, .max_burst = 32768})
            .starts_with("first_burst"));
  CHECK(model::profile_error(ExchangeParameters{.target_segment = 100})
            .starts_with("target_segment"));
  CHECK_FALSE(model::profile_error(ExchangeParameters{.outstanding_r2ts = 0}).empty());
}

}  // namespace sandbay::testing
