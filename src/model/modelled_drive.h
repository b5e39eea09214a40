// ModelledDrive: a layer that gives the device below a drive's timing. Content comes from below and
// is there at once; the completion waits for the longer of the real and the modelled time.
//
// It waits itself, on its executor's clock, although it is not the outermost: which of several
// commands a drive does next depends on those that come while it is busy, so the end of one is
// known only when the modelled time has got there. Where that costs something, which is in real
// time, it costs nothing but the lateness of timers, and the model knows nothing of that. The
// completion carries the exact modelled end.
//
// A request that is cancelled while it waits ends with kCancelled; what it did to the data is done.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "block/layer.h"
#include "model/drive_model.h"
#include "model/model_clock.h"

namespace sandbay::model {

struct ModelledDriveOptions {
  std::string name;  // Of the model, for descriptions.
  // Where on the drive the device begins: 0 is the outermost track. What the device has must fit
  // behind it.
  std::uint64_t first_sector = 0;
};

class ModelledDrive final : public Layer {
 public:
  // Borrows the device and the clock.
  ModelledDrive(BlockDevice& below, const ModelClock& clock, std::unique_ptr<DriveModel> model,
                ModelledDriveOptions options = {});
  ~ModelledDrive() override;  // No request is in flight.

  // Whether the device below fits on such a drive.
  static bool fits_on(const Geometry& geometry, std::uint64_t first_sector,
                      std::uint64_t sector_count);

  const Geometry& geometry() const noexcept override;
  std::string description() const override;
  Task<Completion> submit(Request request) override;

  const DriveModel& model() const noexcept { return *model_; }

 private:
  struct Pending;
  struct Wait;

  DriveCommand translate(const Request& request) const;
  void advance();
  void arm();

  const ModelClock& clock_;
  std::unique_ptr<DriveModel> model_;
  ModelledDriveOptions options_;
  mutable Geometry geometry_;
  Timer timer_;
};

}  // namespace sandbay::model
