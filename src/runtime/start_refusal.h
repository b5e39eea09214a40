// StartRefusal: why the daemon does not start. The function that finds the fault gives its kind,
// and callers hand it up; the daemon's exit code follows from the kind alone.
//
// A text alone is a refusal that may pass, as most are.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <utility>

namespace sandbay {

struct StartRefusal {
  enum class Kind : std::uint8_t {
    kNotNow,         // Something is in use, or memory, threads or room are missing.
    kConfiguration,  // The file or the command line asks for something that cannot be.
    kKernel,         // The kernel does not permit io_uring, or is too old.
  };

  StartRefusal(std::string why) : text(std::move(why)) {}
  StartRefusal(Kind which, std::string why) : kind(which), text(std::move(why)) {}

  Kind kind = Kind::kNotNow;
  std::string text;  // One line.
};

using Started = std::expected<void, StartRefusal>;

// `text` begins with the place in the file or on the command line.
inline std::unexpected<StartRefusal> fault_of_configuration(std::string text) {
  return std::unexpected(StartRefusal(StartRefusal::Kind::kConfiguration, std::move(text)));
}

}  // namespace sandbay
