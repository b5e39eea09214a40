// Threads that take one case after another.
#include "lab/plan_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <expected>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>

namespace sandbay::lab {
namespace {

struct Job {
  const Row* row = nullptr;
  std::optional<std::uint64_t> transfer;
  std::expected<CaseResult, std::string> result = std::unexpected(std::string("it was not run"));
};

class Crew {
 public:
  Crew(const Plan& plan, const PlanHooks& hooks) : plan_(plan), hooks_(hooks) {
    for (const Row& row : plan.rows) {
      if (row.sweep.empty()) jobs_.push_back({.row = &row, .transfer = {}});
      for (const std::uint64_t transfer : row.sweep) {
        jobs_.push_back({.row = &row, .transfer = transfer});
      }
    }
  }

  void run(unsigned threads) {
    std::vector<std::jthread> crew;
    for (unsigned i = 1; i < std::min<std::size_t>(threads, jobs_.size()); ++i) {
      crew.emplace_back([this] { work(); });
    }
    work();
  }

  std::vector<Job>& jobs() { return jobs_; }

 private:
  bool stopped() const { return hooks_.stop != nullptr && hooks_.stop->load(); }

  void work() {
    for (std::size_t at = next_++; at < jobs_.size() && !stopped(); at = next_++) {
      Job& job = jobs_[at];
      // The seed is the row's alone, so that sizes of a sweep meet the same drives.
      Case what{.groups = job.transfer ? job.row->groups_with(*job.transfer) : job.row->groups,
                .ramp_up = job.row->ramp_up,
                .run_time = job.row->run_time,
                .wanted = job.row->wanted,
                .steady_percent = job.row->steady_percent,
                .seed = plan_.seed * 1'000'003 + job.row->number,
                .real_sessions = job.row->real_sessions};
      const ArrayProfile& system = plan_.system_of(*job.row);
      job.result = hooks_.run ? hooks_.run(system, std::move(what))
                              : run_case(system, std::move(what), hooks_.stop);
      const std::scoped_lock lock(telling_);
      ++done_;
      if (hooks_.progress) hooks_.progress(done_, jobs_.size());
    }
  }

  const Plan& plan_;
  const PlanHooks& hooks_;
  std::vector<Job> jobs_;
  std::atomic<std::size_t> next_{0};
  std::mutex telling_;
  std::size_t done_ = 0;
};

// Not the bytes alone: one that was steady has run for less time.
double bytes_per_second(const CaseResult& result) {
  std::uint64_t sum = 0;
  for (const VolumeResult& volume : result.volumes) sum += volume.bytes;
  return static_cast<double>(sum) / result.seconds;
}

// Of a minute: less says nothing of how steady something is.
constexpr std::size_t kLeastSamples = 6;

// Why there was nothing to measure; empty if there was.
std::string too_short_for(const CaseResult& result, const Wanted& wanted) {
  std::size_t volumes = 0;
  std::size_t without = 0;
  for (const VolumeResult& volume : result.volumes) {
    if (wanted.group && volume.group != *wanted.group) continue;
    if (wanted.volume && volume.number != *wanted.volume) continue;
    ++volumes;
    if (volume.requests == 0) ++without;
  }
  if (without == volumes || (wanted.least && without > 0)) {
    const bool of_some = wanted.group || wanted.volume || wanted.least;
    return fmt::format("no request{} ended in the {:g} s measured; measure longer",
                       of_some ? " of a volume" : "", result.seconds);
  }
  const bool of_time = wanted.metric == Metric::kVariation || wanted.metric == Metric::kTrend;
  if (!of_time || result.samples(kSampleSeconds).size() >= kLeastSamples) return {};
  return fmt::format("a {} needs {} s, and {:g} s were measured; measure longer",
                     describe(wanted.metric), kLeastSamples * kSampleSeconds, result.seconds);
}

// The row, if all of its cases were run.
void add_row(PlanResult& result, const Row& row, std::span<Job> jobs) {
  RowResult done{.row = &row, .cases = {}, .too_short = {}};
  for (Job& job : jobs) {
    if (!job.result) {
      if (result.wrong.empty()) result.wrong = row.name() + ": " + job.result.error();
      result.complete = false;
      return;
    }
    result.simulated_requests += job.result->simulated_requests;
    result.virtual_seconds += job.result->virtual_seconds;
    result.processor_seconds += job.result->processor_seconds;
    done.cases.push_back(std::move(*job.result));
    if (bytes_per_second(done.cases.back()) > bytes_per_second(done.cases[done.best])) {
      done.best = done.cases.size() - 1;
    }
  }
  for (const Wanted& wanted : row.wanted) {
    const double value = done.value(wanted);
    std::string why = too_short_for(done.cases[done.best], wanted);
    if (why.empty() && !std::isfinite(value)) {
      why = fmt::format("no request ended in whole {} s; measure longer", kSampleSeconds);
    }
    if (why.empty()) {
      result.measured[wanted.figure] = value;
    } else if (done.too_short.empty()) {
      done.too_short = std::move(why);
    }
  }
  result.rows.push_back(std::move(done));
}

}  // namespace

double RowResult::value(const Wanted& wanted) const { return cases[best].value(wanted); }

PlanResult run_plan(const Plan& plan, unsigned threads, const PlanHooks& hooks) {
  const auto began = std::chrono::steady_clock::now();
  Crew crew(plan, hooks);
  crew.run(threads);
  PlanResult result;
  std::size_t at = 0;
  for (const Row& row : plan.rows) {
    const std::size_t count = std::max<std::size_t>(row.sweep.size(), 1);
    add_row(result, row, std::span(crew.jobs()).subspan(at, count));
    at += count;
  }
  const std::size_t missing = plan.rows.size() - result.rows.size();
  if (missing > 1) {
    result.wrong += fmt::format("; other rows without a result: {}", missing - 1);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  result.real_seconds = took.count();
  return result;
}

std::string rows_too_short(const PlanResult& result) {
  std::string text;
  std::size_t others = 0;
  for (const RowResult& row : result.rows) {
    if (row.too_short.empty()) continue;
    if (text.empty()) {
      text = fmt::format("{}: {}", row.row->name(), row.too_short);
    } else {
      ++others;
    }
  }
  return others == 0 ? text : fmt::format("{}; other rows likewise: {}", text, others);
}

}  // namespace sandbay::lab
