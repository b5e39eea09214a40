// One timer a drive, armed for the model's next event.
#include "model/modelled_drive.h"

#include <fmt/core.h>

#include <cassert>
#include <coroutine>
#include <utility>

namespace sandbay::model {

// In the frame of submit(); the command is its first part, so that the model's pointer leads here.
struct ModelledDrive::Pending : DriveCommand {
  TimePoint came{};  // In real time.
  Pending* older = nullptr;
  Pending* newer = nullptr;
  bool ended = false;
  std::coroutine_handle<> waiting;
};

namespace {

bool carries_extent(Operation operation) {
  return operation != Operation::kFlush && operation != Operation::kAdvise;
}

}  // namespace

// Suspends until the model has ended the command or it is cancelled.
struct ModelledDrive::Wait : Cancellation::Hook {
  Wait(ModelledDrive& on, Pending& what, Cancellation* cancellation)
      : Hook(cancellation,
             [](Hook& hook) {
               auto& self = static_cast<Wait&>(hook);
               if (self.pending.ended) return;
               self.drive.withdraw(self.pending);
               self.cancelled = true;
               if (self.pending.waiting) self.drive.home().post(self.pending.waiting);
             }),
        drive(on),
        pending(what) {}

  bool await_ready() const noexcept { return pending.ended; }
  void await_suspend(std::coroutine_handle<> handle) noexcept { pending.waiting = handle; }
  void await_resume() const noexcept {}

  ModelledDrive& drive;
  Pending& pending;
  bool cancelled = false;
};

ModelledDrive::ModelledDrive(BlockDevice& below, ModelClock clock,
                             std::unique_ptr<DriveModel> model, ModelledDriveOptions options)
    : Layer(below), clock_(clock), model_(std::move(model)), options_(std::move(options)) {
  assert(fits_on(below.geometry(), options_.first_sector, model_->sector_count()));
  timer_.owner = this;
  timer_.fire = [](Timer& timer) {
    auto& self = *static_cast<ModelledDrive*>(timer.owner);
    self.advance();
    self.arm();
  };
}

ModelledDrive::~ModelledDrive() {
  assert(model_->outstanding() == 0);
  assert(!timer_.armed());
}

bool ModelledDrive::fits_on(const Geometry& geometry, std::uint64_t first_sector,
                            std::uint64_t sector_count) {
  const std::uint64_t needed = geometry.block_count * (geometry.block_bytes / kSectorBytes);
  return first_sector <= sector_count && needed <= sector_count - first_sector;
}

const Geometry& ModelledDrive::geometry() const noexcept {
  geometry_ = below().geometry();
  geometry_.rotational = options_.rotational.value_or(model_->rotational());
  return geometry_;
}

std::string ModelledDrive::description() const {
  if (options_.name.empty()) return below().description();
  return fmt::format("{} timed as {}", below().description(), options_.name);
}

DriveCommand ModelledDrive::translate(const Request& request) const {
  const std::uint64_t sectors = below().geometry().block_bytes / kSectorBytes;
  DriveCommand command{.operation = request.operation,
                       .force_unit_access = request.force_unit_access,
                       .arrival = clock_.modelled(home().now())};
  if (!carries_extent(request.operation)) return command;
  command.sector = options_.first_sector + request.extent.first * sectors;
  command.sector_count = request.extent.block_count * sectors;
  return command;
}

TimePoint ModelledDrive::busy_since() const noexcept {
  return oldest_ == nullptr ? kNever : oldest_->came;
}

void ModelledDrive::begin(Pending& pending) {
  pending.came = home().now();
  pending.older = newest_;
  (newest_ != nullptr ? newest_->newer : oldest_) = &pending;
  newest_ = &pending;
  model_->arrive(pending);
  arm();
}

void ModelledDrive::end(Pending& pending) {
  (pending.older != nullptr ? pending.older->newer : oldest_) = pending.newer;
  (pending.newer != nullptr ? pending.newer->older : newest_) = pending.older;
  pending.ended = true;
}

void ModelledDrive::withdraw(Pending& pending) {
  model_->withdraw(pending);
  end(pending);
  arm();
}

void ModelledDrive::advance() {
  const TimePoint now = clock_.modelled(home().now());
  model_->advance(now);
  while (DriveCommand* const command = model_->take_ended(now)) {
    auto& pending = static_cast<Pending&>(*command);
    end(pending);
    if (pending.waiting) home().post(pending.waiting);
  }
}

void ModelledDrive::arm() {
  const TimePoint next = clock_.real(model_->next_event());
  if (timer_.armed()) {
    if (timer_.deadline == next) return;
    home().disarm(timer_);
  }
  timer_.deadline = next;
  if (next != kNever) home().arm(timer_);
}

Task<Completion> ModelledDrive::submit(Request request) {
  assert(fits(below().geometry(), request) || !carries_extent(request.operation));
  if (!running_) co_return co_await below().submit(std::move(request));
  Pending pending;
  static_cast<DriveCommand&>(pending) = translate(request);
  Cancellation* const cancellation = request.cancellation;
  const std::uint64_t losses_before = losses();
  begin(pending);

  Completion completion = co_await below().submit(std::move(request));
  Wait wait(*this, pending, cancellation);
  if (cancellation != nullptr && cancellation->cancelled() && !pending.ended) {
    withdraw(pending);
    completion.error = Error::kCancelled;
    co_return completion;
  }
  co_await wait;
  if (wait.cancelled) completion.error = Error::kCancelled;
  if (completion.error == Error::kNone && losses() != losses_before) {
    completion.error = Error::kNotReady;
  }
  co_return completion;
}

}  // namespace sandbay::model
