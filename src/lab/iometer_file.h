// IometerFile: what an IOMeter configuration (.icf) says, read as IOMeter 2006.07.27 and its
// neighbours write it: lines that begin with an apostrophe name what follows, the lines below them
// are the values.
//
// A file may have only some of its sections, as IOMeter saves it, access specifications at least.
// One that ends too early, names an access specification that it does not have, or has a value
// that cannot be, is refused with one line that begins with FILE:LINE.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <vector>

#include "lab/access.h"
#include "runtime/clock.h"

namespace sandbay::lab {

struct IometerWorker {
  std::string manager;
  std::string name;
  std::string type;                   // "DISK", or a network's, which no array answers.
  std::uint32_t outstanding = 1;      // Requests at one time, of each target.
  std::uint64_t maximum_sectors = 0;  // Of a target that are used; 0: all.
  std::uint64_t starting_sector = 0;
  std::vector<std::string> specifications;  // Assigned, in the order in which they are run.
  std::vector<std::string> targets;
};

// What a test varies from run to run.
enum class IometerTest : std::uint8_t {
  kNormal,
  kCycleTargets,
  kCycleWorkers,
  kCycleOutstanding,
  kCycleOutstandingAndTargets,
  kCycleOutstandingAndWorkers,
};

struct IometerFile {
  std::string version;
  std::string description;
  Duration run_time{};
  Duration ramp_up{};
  IometerTest test = IometerTest::kNormal;
  Cycle outstanding;
  std::vector<AccessSpecification> specifications;
  std::vector<IometerWorker> workers;

  const AccessSpecification* find(std::string_view name) const;
  // The numbers of outstanding requests that the worker is run with, one after another.
  std::vector<std::uint32_t> outstanding_of(const IometerWorker& worker) const;
};

// `name` stands for FILE in the error.
std::expected<IometerFile, std::string> read_iometer_file(std::string_view text,
                                                          std::string_view name);

}  // namespace sandbay::lab
