// Workers in front of a virtual array.
//
// A slot is one request at a time.
#include "lab/virtual_run.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cmath>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "lab/real_sessions.h"
#include "lab/served_request.h"
#include "lab/steadiness.h"
#include "lab/virtual_array.h"
#include "runtime/simulation.h"
#include "runtime/sync.h"

namespace sandbay::lab {
namespace {

constexpr Duration kSecond = std::chrono::seconds(1);
// In which a run is cut to find out whether it is steady; at half of them it may be.
constexpr int kSlices = 2 * static_cast<int>(Steadiness::kLeastSlices);

struct Window {
  TimePoint from{};
  TimePoint until{};
  const std::atomic<bool>* stop = nullptr;

  bool over(TimePoint now) const {
    return now >= until || (stop != nullptr && stop->load(std::memory_order_relaxed));
  }
};

// What a worker's slots share.
struct Worker {
  Worker(VirtualArray& the_array, VirtualVolume& the_volume, const VolumeGroup& the_group,
         std::uint64_t seed)
      : array(the_array),
        volume(the_volume),
        group(the_group),
        pattern(group.access, volume.first_byte, volume.bytes, seed) {
    result.group = volume.group;
    result.number = volume.number;
  }

  VirtualArray& array;
  VirtualVolume& volume;
  const VolumeGroup& group;
  AccessPattern pattern;
  RealSessions* sessions = nullptr;  // Null: models.
  std::size_t index = 0;             // Of all workers.
  Window window;
  VolumeResult result;
  LayerTimes layers;
  std::uint64_t requests = 0;
  Error error = Error::kNone;
};

Task<ServedRequest> serve(Worker* worker, Access access, TimePoint start) {
  if (worker->sessions != nullptr) {
    return worker->sessions->serve(worker->index, access, start);
  }
  return serve_request(&worker->array, &worker->volume, access, start);
}

Task<void> serve_one(Worker* worker, Access access) {
  const TimePoint start = Executor::current().now();
  const ServedRequest served = co_await serve(worker, access, start);
  if (served.error != Error::kNone) worker->error = served.error;
  ++worker->requests;
  if (served.end < worker->window.from || served.end >= worker->window.until) co_return;
  ++worker->result.requests;
  const auto second = static_cast<std::size_t>((served.end - worker->window.from) / kSecond);
  ++worker->result.requests_by_second[second];
  worker->result.bytes += access.bytes;
  worker->result.latency.record(static_cast<std::uint64_t>((served.end - start).count()));
  worker->layers.add(served);
}

Task<void> keep_busy(Worker* worker, Gate* gate) {
  const GateHold hold(*gate);
  Executor& home = Executor::current();
  while (!worker->window.over(home.now()) && worker->error == Error::kNone) {
    const Access access = worker->pattern.next();
    if (access.delay > Duration{}) co_await home.sleep_for(access.delay);
    co_await serve_one(worker, access);
  }
}

struct Run {
  const ArrayProfile& profile;
  Case what;
  const std::atomic<bool>* stop;
  sim::World* world = nullptr;
  CaseResult result;
  std::string wrong;
};

bool is_of(const VolumeResult& volume, const Wanted& wanted) {
  if (wanted.group && volume.group != *wanted.group) return false;
  return !wanted.volume || volume.number == *wanted.volume;
}

// What the workers of a figure have done so far.
struct Sums {
  double requests = 0;
  double bytes = 0;
  double nanoseconds = 0;
};
Sums sums_of(const std::vector<std::unique_ptr<Worker>>& workers, const Wanted& wanted) {
  Sums sums;
  for (const auto& worker : workers) {
    VolumeResult& result = worker->result;
    if (!is_of(result, wanted)) continue;
    const auto requests = static_cast<double>(result.requests);
    sums.requests += requests;
    sums.bytes += static_cast<double>(result.bytes);
    sums.nanoseconds += requests * result.latency.mean();
  }
  return sums;
}

double sample(Metric metric, const Sums& before, const Sums& now) {
  const double requests = now.requests - before.requests;
  if (metric == Metric::kIops) return requests;
  if (metric != Metric::kMilliseconds) return now.bytes - before.bytes;
  return requests > 0 ? (now.nanoseconds - before.nanoseconds) / requests : 0;
}

// Until the end, or until it is steady.
Task<void> wait_for_end(const Case* what, std::vector<std::unique_ptr<Worker>>* workers,
                        TimePoint from) {
  Executor& home = Executor::current();
  if (what->steady_percent == 0) {
    co_await home.sleep_until(from + what->run_time);
    co_return;
  }
  Steadiness steadiness(what->wanted.size(), what->steady_percent);
  std::vector<Sums> before(what->wanted.size());
  std::vector<double> slice(what->wanted.size());
  for (int i = 1; i <= kSlices && !steadiness.reached(); ++i) {
    co_await home.sleep_until(from + what->run_time * i / kSlices);
    for (std::size_t value = 0; value < slice.size(); ++value) {
      const Wanted& wanted = what->wanted[value];
      const Sums now = sums_of(*workers, wanted);
      slice[value] = sample(wanted.metric, std::exchange(before[value], now), now);
    }
    steadiness.add(slice);
  }
}

Task<void> measure(Run* run, VirtualArray* array, std::vector<std::unique_ptr<Worker>>* workers) {
  Executor& home = Executor::current();
  const TimePoint from = home.now() + run->what.ramp_up;
  const TimePoint until = from + run->what.run_time;
  Gate gate;
  for (const auto& worker : *workers) {
    worker->window = {.from = from, .until = until, .stop = run->stop};
    worker->result.requests_by_second.resize(
        static_cast<std::size_t>(run->what.run_time / kSecond) + 1);
    for (unsigned i = 0; i < worker->group.requests(); ++i) {
      if (gate.enter()) spawn(keep_busy(worker.get(), &gate));
    }
  }
  co_await home.sleep_until(from);
  const model::DriveCounters before = array->drive_counters();
  co_await wait_for_end(&run->what, workers, from);
  const TimePoint end = home.now();
  const model::DriveCounters after = array->drive_counters();
  run->result.seconds = static_cast<double>((end - from).count()) / 1e9;
  for (const auto& worker : *workers) {
    worker->window.until = end;
    worker->result.requests_by_second.resize(static_cast<std::size_t>((end - from) / kSecond) + 1);
  }
  run->result.drives =
      shares_of(before, after, run->result.seconds * static_cast<double>(array->drive_count()));
  co_await gate.close();
}

void collect(Run& run, std::vector<std::unique_ptr<Worker>>& workers) {
  for (const auto& worker : workers) {
    run.result.simulated_requests += worker->requests;
    run.result.layers.add(worker->layers);
    if (worker->error != Error::kNone) {
      run.wrong = "a request ended with: " + std::string(describe(worker->error));
    }
    run.result.volumes.push_back(std::move(worker->result));
  }
}

Task<void> measure_array(Run* run, VirtualArray* array, RealSessions* sessions, Random random) {
  std::vector<std::unique_ptr<Worker>> workers;
  for (VirtualVolume& volume : array->volumes()) {
    workers.push_back(
        std::make_unique<Worker>(*array, volume, run->what.groups[volume.group], random.next()));
    workers.back()->sessions = sessions;
    workers.back()->index = workers.size() - 1;
  }
  co_await measure(run, array, &workers);
  collect(*run, workers);
}

Task<void> run_world(Run* run) {
  Executor& home = Executor::current();
  Random random(run->what.seed);
  VirtualArray array(home, run->profile, member_count(run->what.groups), random.next());
  run->wrong = co_await array.start(run->what.groups);
  if (!run->wrong.empty()) {
    co_await array.stop();
    co_return;
  }
  if (run->what.real_sessions) {
    RealSessions sessions(*run->world, array);
    run->wrong = co_await sessions.start(run->what.groups);
    if (run->wrong.empty()) co_await measure_array(run, &array, &sessions, random);
    co_await sessions.stop();
  } else {
    co_await measure_array(run, &array, nullptr, random);
  }
  co_await array.stop();
}

// Of this thread.
double processor_seconds() {
  struct timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

// Requests in each whole sample; the last second is not whole.
std::vector<double> samples_of(const std::vector<std::uint64_t>& by_second,
                               std::size_t sample_seconds) {
  const std::size_t whole = by_second.empty() ? 0 : by_second.size() - 1;
  std::vector<double> samples(whole / sample_seconds);
  for (std::size_t i = 0; i < samples.size() * sample_seconds; ++i) {
    samples[i / sample_seconds] += static_cast<double>(by_second[i]);
  }
  return samples;
}

double mean_of(const std::vector<double>& samples) {
  return std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size());
}

// Both in per cent of the mean; 0 of fewer than two samples.
double variation(const std::vector<double>& samples) {
  if (samples.size() < 2) return 0;
  const double mean = mean_of(samples);
  double squares = 0;
  for (const double sample : samples) squares += (sample - mean) * (sample - mean);
  return 100 * std::sqrt(squares / static_cast<double>(samples.size() - 1)) / mean;
}
double trend(const std::vector<double>& samples) {
  if (samples.size() < 2) return 0;
  const double mean = mean_of(samples);
  const double middle = static_cast<double>(samples.size() - 1) / 2;
  double products = 0;
  double squares = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const double at = static_cast<double>(i) - middle;
    products += at * (samples[i] - mean);
    squares += at * at;
  }
  return 100 * products / squares * static_cast<double>(samples.size() - 1) / mean;
}

double metric_of(std::span<const VolumeResult* const> volumes, Metric metric, double seconds) {
  double bytes = 0;
  double requests = 0;
  double latency = 0;
  std::vector<std::uint64_t> by_second;
  for (const VolumeResult* volume : volumes) {
    by_second.resize(std::max(by_second.size(), volume->requests_by_second.size()));
    std::ranges::transform(volume->requests_by_second, by_second, by_second.begin(), std::plus{});
    bytes += static_cast<double>(volume->bytes);
    requests += static_cast<double>(volume->requests);
    latency += volume->latency.mean() * static_cast<double>(volume->requests);
  }
  switch (metric) {
    case Metric::kMebibytes:
      return bytes / seconds / (1 << 20);
    case Metric::kMegabytes:
      return bytes / seconds / 1e6;
    case Metric::kIops:
      return requests / seconds;
    case Metric::kMilliseconds:
      return requests > 0 ? latency / requests / 1e6 : 0;
    case Metric::kVariation:
      return variation(samples_of(by_second, kSampleSeconds));
    case Metric::kTrend:
      return trend(samples_of(by_second, kSampleSeconds));
  }
  return 0;
}

}  // namespace

DriveShares shares_of(const model::DriveCounters& before, const model::DriveCounters& after,
                      double drive_seconds) {
  const auto share = [&](Duration from, Duration to) {
    return static_cast<double>((to - from).count()) / 1e9 / drive_seconds;
  };
  return {.seeking = share(before.seeking, after.seeking),
          .rotating = share(before.rotating, after.rotating),
          .transferring = share(before.transferring, after.transferring)};
}

std::vector<double> CaseResult::samples(std::size_t sample_seconds) const {
  std::vector<std::uint64_t> by_second;
  for (const VolumeResult& volume : volumes) {
    by_second.resize(std::max(by_second.size(), volume.requests_by_second.size()));
    std::ranges::transform(volume.requests_by_second, by_second, by_second.begin(), std::plus{});
  }
  return samples_of(by_second, sample_seconds);
}

double CaseResult::value(const Wanted& wanted) const {
  std::map<std::pair<std::size_t, unsigned>, std::vector<const VolumeResult*>> parts;
  for (const VolumeResult& volume : volumes) {
    if (!is_of(volume, wanted)) continue;
    // One part for each volume, or one of all.
    parts[wanted.least ? std::pair(volume.group, volume.number) : std::pair(std::size_t{0}, 0U)]
        .push_back(&volume);
  }
  std::optional<double> value;
  for (const auto& [volume, workers] : parts) {
    const double part = metric_of(workers, wanted.metric, seconds);
    value = std::min(value.value_or(part), part);
  }
  return value.value_or(0) / wanted.divide_by;
}

std::expected<CaseResult, std::string> run_case(const ArrayProfile& profile, Case what,
                                                const std::atomic<bool>* stop) {
  const double began = processor_seconds();
  const bool real = what.real_sessions;
  const ArrayProfile system = real ? profile_with_sessions(profile) : profile;
  const sim::WorldOptions options =
      real ? world_with_sessions(what.seed) : sim::WorldOptions{.seed = what.seed};
  Run run{.profile = system, .what = std::move(what), .stop = stop, .result = {}, .wrong = {}};
  // It goes before what its coroutines use.
  auto world = sim::World::create(options);
  run.world = world.get();
  const TimePoint start = world->now();
  const bool ended = world->run([&run] { return run_world(&run); }, std::chrono::hours(1000));
  run.result.virtual_seconds = static_cast<double>((world->now() - start).count()) / 1e9;
  run.result.processor_seconds = processor_seconds() - began;
  // What hangs may hold buffers of the world's, which stays for it.
  if (!ended) static_cast<void>(world.release());
  if (!run.wrong.empty()) return std::unexpected(run.wrong);
  if (!ended) return std::unexpected("nothing goes on any more in virtual time");
  if (stop != nullptr && stop->load()) return std::unexpected("it was stopped");
  return std::move(run.result);
}

}  // namespace sandbay::lab
