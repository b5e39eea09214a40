// Sessions and requests of experiments that are live.
#include "lab/live_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "group/units.h"
#include "iscsi/remote_questions.h"
#include "lab/scsi_transfer.h"
#include "runtime/buffer.h"

namespace sandbay::lab {
namespace {

// A request that takes longer has failed. A modelled disk with a full queue takes seconds.
constexpr Duration kPatience = std::chrono::minutes(1);
// However long a worker pauses, it looks so often whether it is over.
constexpr Duration kLongestSleep = std::chrono::milliseconds(100);
// Once it is stopped, for answers; who has stopped it waits as well.
constexpr Duration kStopPatience = std::chrono::seconds(2);

Duration scaled(Duration duration, double factor) {
  return std::chrono::duration_cast<Duration>(duration * factor);
}

}  // namespace

Task<std::string> LiveWorker::log_in() {
  const VolumeGroup& group = place_.group;
  iscsi::InitiatorOptions login{
      .endpoint = place_.url.endpoint,
      .initiator_name = "iqn.2026-11.org.sandbay:lab-host",
      .target_name = place_.url.target_name,
      .chap = place_.url.chap,
      .connections = group.connections,
      .connection_options = iscsi::paths_of(place_.url, group.connections),
      .path_policy =
          group.in_turn ? iscsi::PathPolicy::kRoundRobin : iscsi::PathPolicy::kLeastQueueDepth,
      .keys = place_.keys,
      .queue_depth = group.requests(),
      .reconnect = false,
  };
  auto session = co_await iscsi::InitiatorSession::login(std::move(login));
  if (!session) co_return fmt::format("{}: {}", place_.shown, session.error().message);
  session_ = std::move(*session);
  refused_ = session_->connections_up() < group.connections;
  if (refused_) {
    co_return fmt::format("{}: grants {} connections, but the experiment has {}", place_.shown,
                          session_->connections_up(), group.connections);
  }
  const auto facts = co_await iscsi::ask_facts(session_.get(), place_.url.lun_number);
  if (!facts) {
    const auto luns = co_await iscsi::ask_luns(session_.get());
    if (luns && std::ranges::find(*luns, place_.url.lun_number) == luns->end()) {
      co_return fmt::format("{}: the target has no such logical unit; it has {}", place_.shown,
                            luns->empty() ? "none" : fmt::format("{}", fmt::join(*luns, ", ")));
    }
    co_return fmt::format("{}: the logical unit cannot be used: {}", place_.shown,
                          describe(facts.error()));
  }
  const Geometry& geometry = facts->geometry;
  const std::string wrong =
      lay_out(geometry.block_count * geometry.block_bytes, geometry.block_bytes,
              facts->most_transfer_blocks * geometry.block_bytes);
  refused_ = !wrong.empty();
  co_return wrong.empty() ? wrong : fmt::format("{}: {}", place_.shown, wrong);
}

// Finds this worker's part of the unit.
std::string LiveWorker::lay_out(std::uint64_t bytes, std::uint32_t block_bytes,
                                std::uint64_t most_transfer_bytes) {
  const VolumeGroup& group = place_.group;
  block_bytes_ = block_bytes;
  const std::uint64_t end = place_.end_byte == 0 ? bytes : place_.end_byte;
  const std::uint64_t volume = end - std::min(end, place_.first_byte);
  const std::uint64_t part = group.part_bytes(volume);
  if (end > bytes) {
    return fmt::format("the logical unit has {}, but the experiment's volumes have {}",
                       group::format_size_rounded(bytes), group::format_size_rounded(end));
  }
  if (part < group.access.largest()) {
    return fmt::format("the logical unit has {}, too little for {} workers with requests of {}",
                       group::format_size_rounded(bytes), group.workers,
                       group::format_size_rounded(group.access.largest()));
  }
  if (place_.first_byte % block_bytes != 0) {
    return fmt::format("has blocks of {} bytes, but the experiment's volumes begin at byte {}",
                       block_bytes, place_.first_byte);
  }
  for (const AccessLine& line : group.access.lines) {
    std::string wrong = check_line(line, most_transfer_bytes);
    if (!wrong.empty()) return wrong;
  }
  const std::uint64_t whole_blocks = part / block_bytes * block_bytes;
  pattern_ = std::make_unique<AccessPattern>(group.access, place_.first_byte + place_.part * part,
                                             whole_blocks, place_.seed);
  return {};
}

std::string LiveWorker::check_line(const AccessLine& line,
                                   std::uint64_t most_transfer_bytes) const {
  if (line.bytes > most_transfer_bytes) {
    return fmt::format("takes requests of at most {}, but the experiment has some of {}",
                       group::format_size_rounded(most_transfer_bytes),
                       group::format_size_rounded(line.bytes));
  }
  const std::uint64_t align = std::max<std::uint64_t>(line.align_bytes, kAccessSectorBytes);
  const bool anywhere = line.random_percent > 0 && align % block_bytes_ != 0;
  if (line.bytes % block_bytes_ == 0 && !anywhere) return {};
  return fmt::format(
      "has blocks of {} bytes, but the experiment has requests of {} bytes at "
      "multiples of {}",
      block_bytes_, line.bytes, anywhere ? align : line.bytes);
}

Task<void> LiveWorker::drive(LiveWindow* window) {
  window_ = window;
  const Duration measured = scaled(window->until - window->from, 1 / window->time_scale);
  result_.group = place_.group_number;
  result_.number = place_.volume;
  result_.requests_by_second.resize(static_cast<std::size_t>(measured / std::chrono::seconds(1)) +
                                    1);
  for (unsigned i = 0; i < place_.group.requests(); ++i) {
    if (gate_.enter()) spawn(keep_busy());
  }
  Event ended;
  Gate watch;
  if (watch.enter()) spawn(leave_when_stopped(&ended, &watch));
  co_await gate_.close();
  ended.set();
  co_await watch.close();
}

// Requests that wait for the target's answer then end with kClosed. Without connections there is
// nobody to wait for at logout.
Task<void> LiveWorker::leave_when_stopped(Event* ended, Gate* watch) {
  const GateHold hold(*watch);
  Executor& home = Executor::current();
  while (!stopped()) {
    const bool all = co_await ended->wait_until(home.now() + kLongestSleep);
    if (all) co_return;
  }
  const bool all = co_await ended->wait_until(home.now() + kStopPatience);
  if (all) co_return;
  left_ = true;
  for (std::size_t index = 0; index < session_->connection_count(); ++index) {
    co_await session_->break_connection(index);
  }
  co_await session_->close();
}

Task<void> LiveWorker::log_out() {
  if (session_ != nullptr && !left_) co_await session_->close();
  session_.reset();
}

bool LiveWorker::stopped() const {
  return window_->stop != nullptr && window_->stop->load(std::memory_order_relaxed);
}

bool LiveWorker::over() const {
  return window_->failed || Executor::current().now() >= window_->until || stopped();
}

// One place of the queue.
Task<void> LiveWorker::keep_busy() {
  const GateHold hold(gate_);
  Executor& home = Executor::current();
  BufferList written;
  if (place_.group.access.writes()) {
    // Something that does not compress.
    written = co_await home.buffers().allocate(place_.group.access.largest());
    Random random(place_.seed);
    for (std::size_t piece = 0; piece < written.slice_count(); ++piece) {
      for (std::byte& byte : written[piece].bytes()) byte = static_cast<std::byte>(random.next());
    }
  }
  while (!over()) {
    const Access access = pattern_->next();
    const TimePoint due = home.now() + scaled(access.delay, window_->time_scale);
    while (home.now() < due && !over()) {
      co_await home.sleep_until(std::min(due, home.now() + kLongestSleep));
    }
    if (access.delay > Duration{} && over()) break;
    const TimePoint start = home.now();
    const iscsi::ScsiResult result = co_await transfer(access, &written);
    account(access, start, result);
  }
}

Task<iscsi::ScsiResult> LiveWorker::transfer(Access access, const BufferList* written) {
  Executor& home = Executor::current();
  iscsi::InitiatorSession::Reply reply;
  for (std::uint32_t count = 0; count < kMaximumTries; ++count) {
    iscsi::ScsiRequest request;
    request.lun = place_.url.lun;
    request.cdb = transfer_cdb(!access.read, access.offset / block_bytes_,
                               static_cast<std::uint32_t>(access.bytes / block_bytes_));
    request.timeout = scaled(kPatience, window_->time_scale);
    if (access.read) {
      request.data_in = co_await home.buffers().allocate(access.bytes);
    } else {
      request.data_out = written->share(0, access.bytes);
    }
    reply = co_await session_->execute(std::move(request));
    if (!transient(reply.result)) break;
    if (reply.result.status != scsi::Status::kCheckCondition) co_await home.sleep_for(kRetryDelay);
  }
  co_return reply.result;
}

// A connection that is given up for its silence ends requests as one does that the target resets.
std::string LiveWorker::describe_failure(TimePoint start, const iscsi::ScsiResult& result) const {
  const Duration silence = Executor::current().now() - std::max(start, last_answer_);
  if (result.error != Error::kReset || silence < iscsi::InitiatorOptions{}.nop_out_timeout) {
    return explain(result);
  }
  return fmt::format("no answer came in {:.0f} s", std::chrono::duration<double>(silence).count());
}

void LiveWorker::account(const Access& access, TimePoint start, const iscsi::ScsiResult& result) {
  ++requests_;
  if (left_) return;
  if (!result.whole()) {
    window_->failed = true;
    if (wrong_.empty()) {
      wrong_ = fmt::format("{}: {} of {} bytes at byte {}: {}", place_.shown,
                           access.read ? "read" : "write", access.bytes, access.offset,
                           describe_failure(start, result));
    }
    return;
  }
  const TimePoint end = Executor::current().now();
  last_answer_ = end;
  if (end < window_->from || end >= window_->until) return;
  const auto modelled = [this](Duration real) { return scaled(real, 1 / window_->time_scale); };
  ++result_.requests;
  result_.bytes += access.bytes;
  result_.latency.record(static_cast<std::uint64_t>(modelled(end - start).count()));
  const auto second =
      static_cast<std::size_t>(modelled(end - window_->from) / std::chrono::seconds(1));
  ++result_.requests_by_second[second];
}

}  // namespace sandbay::lab
