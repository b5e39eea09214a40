// ArrayProfile: a system as the lab runs it in virtual time: its drives, cache, controller and
// ports, the rules of its sessions, and the hosts that stood in front of it.
// conf/lab/systems/*.toml has one system a file.
//
// A value there is { value = …, from = …, source = "…" }, where `from` is one of kOrigins. What is
// "fitted" was fitted to figures of role `fit`, and is what the report's table of influences
// varies.
#pragma once

#include <array>
#include <cstdint>
#include <expected>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/controller.h"
#include "model/drive_profile.h"
#include "model/exchange.h"
#include "model/host.h"
#include "model/port.h"

namespace sandbay::lab {

inline constexpr std::array<std::string_view, 4> kOrigins = {"data sheet", "document", "fitted",
                                                             "assumed"};

struct Parameter {
  std::string name;    // "controller.write_mib"
  std::string value;   // As it stands in the file.
  std::string origin;  // Of kOrigins.
  std::string source;
  std::uint32_t line = 0;  // In the file; 0: not from one.
};

// A host's requests take a time for each number of adapters up to this.
inline constexpr unsigned kMostAdapters = 16;

struct HostType {
  std::string name;
  model::HostProfile profile;
};

// What a system may have at its front; the rules of the others are said in iSCSI's words.
inline constexpr std::string_view kIscsiFrontEnd = "iSCSI";
inline constexpr std::array<std::string_view, 3> kFrontEnds = {kIscsiFrontEnd, "Fibre Channel",
                                                               "NFS"};

struct ArrayProfile {
  std::string name;
  std::string front_end{kIscsiFrontEnd};  // Of kFrontEnds.
  std::uint64_t drive_count = 0;
  // Of arrays with one controller each that may be a group; 0: it is an array that stands alone.
  std::uint64_t member_count = 0;
  model::DriveProfile drive;
  std::uint64_t first_byte = 0;  // Of each drive, that is used: 0 is its outermost track.
  std::uint64_t strip_bytes = 64 << 10;
  std::uint64_t page_bytes = 15 << 20;  // Where volumes are spread over members or sets.
  // A volume's pages are spread all over each set; else they follow one another.
  bool scattered_pages = false;
  bool nearest_mirror = true;  // Read: that whose head is; else one by the number of the stripe.
  // Each with a cache, processors and ports of its own, as the values of these are.
  std::uint64_t controller_count = 1;
  // The cache's; 0: there is none, and volumes are their sets. Dirty data have the part
  // `dirty_bytes`; where more than so many per cent of it is used, they go to the drives.
  std::uint64_t cache_bytes = 512 << 20;
  std::uint64_t dirty_bytes = 256 << 20;
  std::uint64_t flush_mark_percent = 50;
  // Of the cache, for what was read ahead; and the most of one stream.
  std::uint64_t read_ahead_bytes = 128 << 20;
  std::uint64_t read_ahead_window_bytes = 8 << 20;
  std::uint64_t destages_in_flight = 8;        // Of each RAID set.
  std::uint64_t drive_write_bytes = 64 << 10;  // What each drive is given in one destage.
  bool write_back = true;                      // Else a write ends when the drives have it.
  model::ControllerProfile controller;
  std::uint64_t port_count = 1;
  model::PortProfile port;
  model::ExchangeParameters exchange;
  // Of one connection, at one time, are received; 0: any number.
  std::uint64_t writes_in_transfer = 0;
  // Until an R2T goes out, with so many connections in the session.
  Duration r2t_time{};
  Duration r2t_time_per_connection{};
  // What others ask of drives, where an experiment has them do so.
  double background_read_share = 0.5;
  std::uint64_t background_bytes = 8192;
  std::vector<HostType> hosts;
  // Systems of their own that the document measured as well, such as a disk in a server. They have
  // none themselves.
  std::vector<ArrayProfile> beside;
  std::vector<Parameter> parameters;  // Those of systems beside it as well, as "NAME.controller.…".

  const HostType* find_host(std::string_view name) const;
  std::uint64_t sectors_of_drive() const;  // That are used.
  Duration r2t_time_with(std::uint64_t connections) const {
    return r2t_time + static_cast<Duration::rep>(connections) * r2t_time_per_connection;
  }
};

// Factors on values, by the name of the parameter; for the table of influences.
using Scales = std::map<std::string, double>;

// Reads the file and the drive's profile that it names (relative to its own folder). The error is
// one line.
std::expected<ArrayProfile, std::string> read_array_profile(const std::string& path,
                                                            const Scales& scales = {});

}  // namespace sandbay::lab
