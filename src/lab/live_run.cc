// Workers in front of sockets.
#include "lab/live_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <ctime>
#include <memory>
#include <optional>
#include <utility>

#include "lab/live_system.h"
#include "lab/live_worker.h"
#include "lab/load.h"
#include "runtime/known.h"
#include "runtime/reactor.h"

namespace sandbay::lab {
namespace {

// Workers begin so long after the last of them is ready, at one moment.
constexpr Duration kLiveStartDelay = std::chrono::milliseconds(2);
constexpr std::size_t kLeastMemory = std::size_t{256} << 20;

using LiveWorkers = std::vector<std::unique_ptr<LiveWorker>>;

struct LiveRun {
  const ArrayProfile& profile;
  const Case& what;
  const LiveOptions& options;
  Executor& initiator;  // Where the workers are.
  LiveWindow window;
  std::unique_ptr<LiveSystem> system;  // None if the logical units are elsewhere.
  LiveWorkers workers;
  CaseResult result;
};

Duration stretched(Duration modelled, double time_scale) {
  return std::chrono::duration_cast<Duration>(modelled * time_scale);
}

// Where the workers of a volume find it. `worker`: of all in the case; `volume` likewise.
LiveWorker::Place place_of(const LiveRun& run, const VolumeGroup& group, std::size_t worker,
                           std::size_t volume) {
  LiveWorker::Place place{.group = group, .url = {}, .shown = {}, .keys = {}};
  if (run.system != nullptr) {
    place.url = {.endpoint = run.system->endpoint(), .target_name = kLabTarget};
    place.url.lun_number = static_cast<std::uint32_t>(worker);
    place.url.lun = iscsi::encode_lun(place.url.lun_number);
    place.shown = "the lab's system";
    place.keys = session_keys(run.profile.exchange, run.profile.exchange.initiator_segment);
    return place;
  }
  place.url = *iscsi::parse_url(run.options.urls[volume]);
  place.shown = without_password(run.options.urls[volume]);
  place.first_byte = group.in_pages() ? group.offset_bytes : 0;
  place.end_byte = group.volume_bytes;
  return place;
}

void make_workers(LiveRun& run, Random& random) {
  std::size_t volume = 0;
  for (std::size_t index = 0; index < run.what.groups.size(); ++index) {
    const VolumeGroup& group = run.what.groups[index];
    for (unsigned number = 0; number < group.volume_count(); ++number, ++volume) {
      for (unsigned part = 0; part < group.workers; ++part) {
        LiveWorker::Place place = place_of(run, group, run.workers.size(), volume);
        place.group_number = index;
        place.volume = number;
        place.part = part;
        place.seed = random.next();
        run.workers.push_back(std::make_unique<LiveWorker>(std::move(place)));
      }
    }
  }
}

// One after the other: what is wrong with the first is probably wrong with all.
Task<std::string> log_in_all(LiveWorkers* workers) {
  for (const auto& worker : *workers) {
    std::string wrong = co_await worker->log_in();
    if (!wrong.empty()) co_return wrong;
  }
  co_return std::string();
}

Task<void> drive_one(LiveWorker* worker, LiveWindow* window, Gate* gate) {
  const GateHold hold(*gate);
  co_await worker->drive(window);
}

Task<void> drive_all(LiveWorkers* workers, LiveWindow* window) {
  Gate gate;
  for (const auto& worker : *workers) {
    if (gate.enter()) spawn(drive_one(worker.get(), window, &gate));
  }
  co_await gate.close();
}

Task<void> log_out_all(LiveWorkers* workers) {
  for (const auto& worker : *workers) co_await worker->log_out();
}

// Notes the work of the drives of the lab's system while it is measured.
Task<void> watch_drives(LiveRun* run, Event* over, Gate* gate) {
  const GateHold hold(*gate);
  VirtualArray& array = run->system->array();
  bool ended = co_await over->wait_until(run->window.from);
  if (ended) co_return;
  const model::DriveCounters before = array.drive_counters();
  ended = co_await over->wait_until(run->window.until);
  const model::DriveCounters after = array.drive_counters();
  const double seconds = std::chrono::duration<double>(run->what.run_time).count();
  run->result.drives = shares_of(before, after, seconds * static_cast<double>(array.drive_count()));
}

Task<void> measure(LiveRun* run) {
  const double scale = run->options.time_scale;
  run->window.time_scale = scale;
  run->window.from =
      Executor::current().now() + kLiveStartDelay + stretched(run->what.ramp_up, scale);
  run->window.until = run->window.from + stretched(run->what.run_time, scale);
  Event over;
  Gate gate;
  if (run->system != nullptr) {
    run->system->measure(run->window.from, run->window.until);
    if (gate.enter()) spawn(watch_drives(run, &over, &gate));
  }
  co_await invoke_on(run->initiator, drive_all(&run->workers, &run->window));
  over.set();
  co_await gate.close();
}

void collect(LiveRun& run) {
  CaseResult& result = run.result;
  const Duration all = run.what.ramp_up + run.what.run_time;
  result.seconds = std::chrono::duration<double>(run.what.run_time).count();
  result.virtual_seconds = std::chrono::duration<double>(all).count();
  if (run.system != nullptr) result.layers = run.system->layers();
  for (const auto& worker : run.workers) {
    result.simulated_requests += worker->requests();
    result.volumes.push_back(std::move(worker->result()));
  }
}

std::string wrong_of(const LiveRun& run) {
  for (const auto& worker : run.workers) {
    if (!worker->wrong().empty()) return worker->wrong();
  }
  const bool stopped = run.window.stop != nullptr && run.window.stop->load();
  return stopped ? "it was stopped" : std::string();
}

// The processor time of this process.
double process_seconds() {
  struct timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

// Each request has its payload on both sides, and some more on the way.
std::size_t memory_for(const Case& what) {
  std::uint64_t bytes = 0;
  for (const VolumeGroup& group : what.groups) {
    const std::uint64_t largest = group.access.largest();
    bytes += std::uint64_t{group.volume_count()} * group.workers *
             (group.requests() * (largest + 65536) + group.connections * (std::uint64_t{1} << 20));
  }
  return kLeastMemory + 4 * bytes;
}

// Whatever else differs, such as who logs in.
bool same_unit(const std::string& one, const std::string& other) {
  const auto a = iscsi::parse_url(one);
  const auto b = iscsi::parse_url(other);
  if (!a || !b || a->target_name != b->target_name || a->lun_number != b->lun_number) return false;
  const auto leads_to = [&b](const Endpoint& portal) {
    return portal == b->endpoint ||
           std::ranges::find(b->more_endpoints, portal) != b->more_endpoints.end();
  };
  return leads_to(a->endpoint) || std::ranges::any_of(a->more_endpoints, leads_to);
}

// That each names a logical unit of its own.
std::string check_units(const std::vector<std::string>& urls) {
  for (std::size_t i = 0; i < urls.size(); ++i) {
    std::string wrong = url_error(urls[i]);
    if (!wrong.empty()) return "--live " + wrong;
    const auto before = std::span(urls).first(i);
    const auto same = [&](const std::string& other) { return same_unit(urls[i], other); };
    if (std::ranges::none_of(before, same)) continue;
    return fmt::format("--live {} is given twice; each volume has a logical unit of its own",
                       without_password(urls[i]));
  }
  return {};
}

std::size_t volumes_of(const Row& row) {
  std::size_t volumes = 0;
  for (const VolumeGroup& group : row.groups) volumes += group.volume_count();
  return volumes;
}

// More than any row uses.
std::string check_surplus(const Plan& plan, const std::vector<std::string>& urls) {
  std::size_t most = 0;
  for (const Row& row : plan.rows) most = std::max(most, volumes_of(row));
  if (urls.size() <= most) return {};
  return fmt::format("--live has URLs for {} volumes, but no row that is run has more than {}",
                     urls.size(), most);
}

std::string check_targets(const Row& row, const LiveOptions& options) {
  bool writes = false;
  for (const VolumeGroup& group : row.groups) writes = writes || group.access.writes();
  const std::size_t volumes = volumes_of(row);
  if (volumes > options.urls.size()) {
    return fmt::format(
        "--live has URLs for {} volumes, but {} has {}; give one for each, or choose other rows "
        "with --only",
        options.urls.size(), row.name(), volumes);
  }
  if (writes && !options.write) {
    return fmt::format(
        "{} writes, which destroys what is on the logical units: add --write to "
        "allow it",
        row.name());
  }
  return {};
}

}  // namespace

std::string check_live(const Plan& plan, const LiveOptions& options) {
  if (!(options.time_scale >= 1 && options.time_scale <= kLargestTimeScale)) {
    return fmt::format("--time-scale is {}; 1 to {} is accepted", options.time_scale,
                       kLargestTimeScale);
  }
  if (options.urls.empty() && options.write) {
    return "--write is for targets elsewhere: add a URL to --live";
  }
  std::string wrong = check_units(options.urls);
  if (wrong.empty()) wrong = check_surplus(plan, options.urls);
  if (!wrong.empty()) return wrong;
  for (const Row& row : plan.rows) {
    if (row.real_sessions) {
      return fmt::format(
          "{}: sessions = \"real\" is for virtual time; live, sessions are real anyway: run rows "
          "without it, or choose others with --only",
          row.name());
    }
    for (const VolumeGroup& group : row.groups) {
      wrong = session_error(group).what;
      if (!wrong.empty()) return fmt::format("{}: {}", row.name(), wrong);
    }
    if (options.urls.empty()) continue;
    wrong = check_targets(row, options);
    if (!wrong.empty()) return wrong;
  }
  return {};
}

Task<std::expected<CaseResult, LiveFailure>> run_live(const ArrayProfile* profile, Case what,
                                                      const LiveOptions* options,
                                                      std::span<Executor* const> executors,
                                                      const std::atomic<bool>* stop) {
  assert(&Executor::current() == executors.front());
  LiveRun run{.profile = *profile,
              .what = what,
              .options = *options,
              .initiator = *executors.back(),
              .window = {.stop = stop},
              .system = nullptr,
              .workers = {},
              .result = {}};
  Random random(what.seed);
  const std::uint64_t array_seed = random.next();
  std::string wrong;
  if (options->urls.empty()) {
    run.system = std::make_unique<LiveSystem>(*profile, member_count(what.groups), array_seed,
                                              options->time_scale);
    wrong = co_await run.system->start(what.groups);
  }
  if (wrong.empty()) {
    make_workers(run, random);
    wrong = co_await invoke_on(run.initiator, log_in_all(&run.workers));
  }
  if (wrong.empty()) {
    co_await measure(&run);
    collect(run);
    wrong = wrong_of(run);
  }
  co_await invoke_on(run.initiator, log_out_all(&run.workers));
  if (run.system != nullptr) co_await run.system->stop();
  if (wrong.empty()) co_return std::move(run.result);
  const bool refused =
      std::ranges::any_of(run.workers, [](const auto& worker) { return worker->refused(); });
  co_return std::unexpected(LiveFailure{.what = std::move(wrong), .of_case = refused});
}

std::expected<CaseResult, LiveFailure> run_live_case(const ArrayProfile& profile, Case what,
                                                     const LiveOptions& options,
                                                     const std::atomic<bool>* stop) {
  const double began = process_seconds();
  const auto group = ReactorGroup::create({.count = 2, .memory_limit_bytes = memory_for(what)});
  if (!group) return std::unexpected(LiveFailure{.what = group.error().text});
  std::optional<std::expected<CaseResult, LiveFailure>> result;
  struct Work {
    static Task<void> main(const ArrayProfile* profile, Case what, const LiveOptions* options,
                           ReactorGroup* group, const std::atomic<bool>* stop,
                           std::optional<std::expected<CaseResult, LiveFailure>>* into) {
      std::expected<CaseResult, LiveFailure> ended =
          co_await run_live(profile, std::move(what), options, group->executors(), stop);
      into->emplace(std::move(ended));
    }
  };
  (*group)->run([&] { return Work::main(&profile, what, &options, group->get(), stop, &result); });
  std::expected<CaseResult, LiveFailure> ended = std::move(known(result));
  if (ended) ended->processor_seconds = process_seconds() - began;
  return ended;
}

}  // namespace sandbay::lab
