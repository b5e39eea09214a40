// ModelledDrive: a layer that gives the device below a drive's timing. Content comes from below and
// is there at once; the completion waits for the longer of the real and the modelled time.
// Whatever emulates what a drive's power cut does to its content is below, too.
//
// It waits itself, on its executor's clock: which of several commands a drive does next depends on
// those that come while it is busy, so the end of one is known only when the modelled time has got
// there. Timers are late in real time; the model decides as of the modelled moment all the same, so
// no lateness adds up while the drive is busy.
//
// A request that is cancelled while it waits ends with kCancelled; what it did to the data is done.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "block/layer.h"
#include "model/drive_model.h"
#include "model/model_clock.h"

namespace sandbay::model {

struct ModelledDriveOptions {
  std::string name;                // The model's, for descriptions.
  std::optional<bool> rotational;  // As the device reports itself; none: as the profile is.
  // How often un-flushed content below has been lost. A command during which that happens ends with
  // kNotReady, for what it did may be lost with it. May be empty: never.
  std::function<std::uint64_t()> losses;
  // Where on the drive the device begins: 0 is the outermost track. All of the device must fit
  // behind it.
  std::uint64_t first_sector = 0;
};

class ModelledDrive final : public Layer {
 public:
  // Borrows the device.
  ModelledDrive(BlockDevice& below, ModelClock clock, std::unique_ptr<DriveModel> model,
                ModelledDriveOptions options = {});
  ~ModelledDrive() override;  // No request is in flight.

  // Whether the device below fits on such a drive.
  static bool fits_on(const Geometry& geometry, std::uint64_t first_sector,
                      std::uint64_t sector_count);

  // From then on commands take time. Those that came before take none.
  void begin_time() noexcept { running_ = true; }

  const Geometry& geometry() const noexcept override;
  std::string description() const override;
  TimePoint busy_since() const noexcept override;
  Task<Completion> submit(Request request) override;

  const DriveModel& model() const noexcept { return *model_; }

 private:
  struct Pending;
  struct Wait;

  DriveCommand translate(const Request& request) const;
  std::uint64_t losses() const { return options_.losses ? options_.losses() : 0; }
  void begin(Pending& pending);
  void end(Pending& pending);
  void withdraw(Pending& pending);
  void advance();
  void arm();

  ModelClock clock_;
  std::unique_ptr<DriveModel> model_;
  ModelledDriveOptions options_;
  mutable Geometry geometry_;
  bool running_ = false;
  Timer timer_;
  // The model's commands, in order of arrival.
  Pending* oldest_ = nullptr;
  Pending* newest_ = nullptr;
};

}  // namespace sandbay::model
