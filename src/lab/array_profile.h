// ArrayProfile: a system as the lab runs it in virtual time: its drives, cache, controller and
// ports, the rules of its sessions, and the hosts that stood in front of it.
//
// What is the array's is in its file, conf/arrays/*.toml, which the daemon reads as well. What is
// the hosts' or a test's is in the experiments' file, which names the array: its test bed.
//
//   array = "../arrays/NAME.toml"
//   front_end = "NFS"                 What hosts came through; "iSCSI" if it is left out.
//   [cache] memory, dirty, flush_mark, read_ahead, write_back    Where the array's file has others.
//   [layout] page, scattered_pages, nearest_mirror, drives, controllers
//   [session], [background], [[host]]
//   [[beside]]                        Another array that the document measured, and its own bed.
//
// A value may be { value = …, from = …, source = "…" }, where `from` is one of group::kOrigins.
// What is "fitted" was fitted to figures of role `fit`, and is what the report's table of
// influences varies.
#pragma once

#include <array>
#include <cstdint>
#include <expected>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "group/document_forms.h"
#include "iscsi/transfer_pace.h"
#include "model/controller.h"
#include "model/drive_profile.h"
#include "model/exchange.h"
#include "model/host.h"
#include "model/port.h"

namespace sandbay::lab {

// Its name is as in "controller.write_mib", "host.client.request_time"; of a value of an array
// beside it begins with that one's name.
using Parameter = group::Provenance;

// A host's requests take a time for each number of adapters up to this.
inline constexpr unsigned kMostAdapters = 16;

struct HostType {
  std::string name;
  model::HostProfile profile;
};

// The rules of the others are said in iSCSI's words.
inline constexpr std::string_view kIscsiFrontEnd = "iSCSI";
inline constexpr std::array<std::string_view, 3> kFrontEnds = {kIscsiFrontEnd, "Fibre Channel",
                                                               "NFS"};

struct ArrayProfile {
  std::string name;                       // Its file's, without folder and suffix.
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
  std::uint64_t destages_in_flight = 8;  // For each RAID set.
  std::uint64_t drive_write_bytes = 0;   // For each drive in one destage; 0: one stripe.
  bool write_back = true;                // Else a write ends when the drives have it.
  model::ControllerProfile controller;
  std::uint64_t port_count = 1;
  model::PortProfile port;
  model::ExchangeParameters exchange;
  iscsi::TransferPace pace;
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
};

// Factors on values, by the name of the parameter; for the table of influences.
using Scales = std::map<std::string, double>;

// The keys of a test bed at the top of an experiments' file.
inline constexpr std::array<std::string_view, 8> kBedKeys = {
    "array", "front_end", "cache", "layout", "session", "background", "host", "beside"};

// Reads the test bed of an experiments' file, and the arrays that it names (relative to its own
// folder). The error is one line.
std::expected<ArrayProfile, std::string> read_test_bed(const std::string& path,
                                                       const Scales& scales = {});

}  // namespace sandbay::lab
