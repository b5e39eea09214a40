// Builds a system out of its profile and takes it apart.
#include "lab/virtual_array.h"

#include <fmt/format.h>

#include <algorithm>

#include "raid/assembly.h"

namespace sandbay::lab {
namespace {

// No request of a modelled drive is given up, however long its queue is.
constexpr Duration kNoLimit = std::chrono::hours(24);
constexpr std::size_t kPayloadBytes = std::size_t{8} << 30;
// Address space only, all of these.
constexpr std::size_t kScratchBytes = std::size_t{512} << 20;
constexpr std::size_t kLargestUpdate = std::size_t{64} << 20;

// What a drive keeps: nothing. Metadata read as zeros, which is what a blank drive has.
class Nothing final : public BlockDevice {
 public:
  Nothing(Executor& home, std::uint64_t sectors) : home_(home) {
    geometry_.block_count = sectors;
    geometry_.physical_block_bytes = geometry_.block_bytes;
    geometry_.volatile_cache = false;
  }
  Executor& home() const noexcept override { return home_; }
  const Geometry& geometry() const noexcept override { return geometry_; }
  Health health() const noexcept override { return Health::kGood; }
  std::string description() const override { return "a drive without data"; }
  Task<Completion> submit(Request request) override {
    if (request.operation == Operation::kRead) request.data.fill_zero();
    co_return Completion{.data = std::move(request.data)};
  }
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override {
    co_return ProvisioningRun{.block_count = limit - first};
  }

 private:
  Executor& home_;
  Geometry geometry_;
};

// A set as its cache sees it: what it best takes at once is so much for each of its drives.
class DestageUnits final : public Layer {
 public:
  DestageUnits(raid::RaidSet& set, std::uint64_t bytes_of_drive)
      : Layer(set), geometry_(set.geometry()) {
    const raid::Layout& layout = set.layout();
    const std::uint64_t strips =
        std::max<std::uint64_t>(bytes_of_drive / 512 / layout.strip_blocks(), 1);
    const unsigned copies = layout.mirrored() ? layout.width() : 1;
    const unsigned data_drives =
        layout.drive_count() / copies - layout.parity_chunks() * layout.group_count();
    geometry_.optimal_io_blocks =
        static_cast<std::uint32_t>(strips * layout.strip_blocks() * data_drives);
  }
  const Geometry& geometry() const noexcept override { return geometry_; }

 private:
  Geometry geometry_;
};

// A volume whose pages go round the members' sets.
class Pages final : public BlockDevice {
 public:
  Pages(std::vector<BlockDevice*> sets, std::uint64_t page_blocks, std::uint64_t first_page,
        std::uint64_t pages, std::uint64_t volume)
      : sets_(std::move(sets)),
        page_blocks_(page_blocks),
        first_page_(first_page),
        volume_(volume),
        geometry_(sets_.front()->geometry()) {
    geometry_.block_count = pages * page_blocks;
  }
  Executor& home() const noexcept override { return sets_.front()->home(); }
  const Geometry& geometry() const noexcept override { return geometry_; }
  Health health() const noexcept override { return Health::kGood; }
  std::string description() const override { return "pages"; }

  Task<Completion> submit(Request request) override {
    const Extent whole = request.extent;
    BufferList data = std::move(request.data);
    Completion last;
    BufferList done;
    for (Lba at = whole.first; at < whole.end();) {
      const std::uint64_t page = at / page_blocks_;
      const std::uint64_t count = std::min(whole.end() - at, page_blocks_ - at % page_blocks_);
      Request part{.operation = request.operation,
                   .force_unit_access = request.force_unit_access,
                   .origin = request.origin,
                   .volume = volume_};
      part.extent = {
          .first = (first_page_ + page / sets_.size()) * page_blocks_ + at % page_blocks_,
          .block_count = count};
      if (!data.empty()) part.data = data.take_front(count * geometry_.block_bytes);
      last = co_await sets_[page % sets_.size()]->submit(std::move(part));
      done.append(std::move(last.data));
      if (last.error != Error::kNone) break;
      at += count;
    }
    last.data = std::move(done);
    co_return last;
  }
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override {
    co_return ProvisioningRun{.block_count = limit - first};
  }

 private:
  std::vector<BlockDevice*> sets_;
  std::uint64_t page_blocks_;
  std::uint64_t first_page_;  // On each set.
  std::uint64_t volume_;
  Geometry geometry_;
};

model::ControllerProfile of_all(model::ControllerProfile profile, unsigned members) {
  profile.processors *= members;
  profile.read_rate *= members;
  profile.write_rate *= members;
  profile.total_rate *= members;
  profile.mirror_rate *= members;
  return profile;
}

cache::CacheOptions cache_options(const ArrayProfile& profile, unsigned members) {
  cache::CacheOptions options;
  options.memory_bytes = profile.cache_bytes * members;
  options.dirty_limit_bytes = profile.dirty_bytes * members;
  options.destages_in_flight = static_cast<unsigned>(profile.destages_in_flight);
  options.read_ahead_limit_bytes = profile.read_ahead_bytes;
  options.read_ahead_share =
      static_cast<double>(profile.read_ahead_bytes) / static_cast<double>(profile.cache_bytes);
  options.content = Content::kNone;
  return options;
}

}  // namespace

VirtualConnection& VirtualVolume::choose_connection() {
  std::size_t best = next_connection;
  for (std::size_t i = 1; i < connections.size(); ++i) {
    const std::size_t other = (next_connection + i) % connections.size();
    if (connections[other].in_flight < connections[best].in_flight) best = other;
  }
  next_connection = (best + 1) % connections.size();
  return connections[best];
}

VirtualArray::VirtualArray(Executor& home, const ArrayProfile& profile, unsigned members,
                           std::uint64_t seed)
    : home_(home),
      profile_(profile),
      random_(seed),
      type_(profile.drive),
      controller_(of_all(profile.controller, members)),
      payloads_(home, kPayloadBytes, Content::kNone) {
  cache_ = std::make_unique<cache::Cache>(home, cache_options(profile, members));
  streams_.memory_bytes = profile.read_ahead_bytes;
  for (std::uint64_t i = 0; i < profile.port_count * members; ++i) {
    ports_.push_back(std::make_unique<model::Port>(profile.port));
  }
}

VirtualArray::~VirtualArray() {
  fronts_.clear();
  places_.clear();
  cache_.reset();
}

BlockDevice& VirtualArray::add_drive() {
  Drive drive;
  drive.medium = std::make_unique<Nothing>(home_, model::sector_count(profile_.drive));
  drive.timed = std::make_unique<model::ModelledDrive>(
      *drive.medium, clock_, type_.make({.seed = random_.next()}),
      model::ModelledDriveOptions{.name = profile_.drive.name});
  drives_.push_back(std::move(drive));
  return *drives_.back().timed;
}

// A set whose redundancy has been verified long ago.
Task<std::string> VirtualArray::add_set(const VolumeGroup* group) {
  std::vector<raid::Candidate> candidates;
  std::vector<BlockDevice*> devices;
  for (unsigned i = 0; i < group->drives; ++i) {
    devices.push_back(&add_drive());
    raid::Candidate candidate{.name = fmt::format("drive {}", drives_.size()),
                              .block_count = devices.back()->geometry().block_count};
    candidate.contents.kind = raid::DriveContents::Kind::kBlank;
    candidates.push_back(std::move(candidate));
  }
  raid::NewSet wanted;
  wanted.name = fmt::format("set {}", sets_.size() + 1);
  wanted.level = group->level;
  wanted.strip_bytes = static_cast<std::uint32_t>(profile_.strip_bytes);
  wanted.journal_bytes = 0;
  auto planned = raid::plan_new_set(wanted, candidates, random_);
  if (!planned) co_return planned.error();
  planned->regions.set_all_dirty(false);
  const auto layout = planned->superblocks[0].layout();
  if (!layout) co_return layout.error();

  Set set;
  set.drives = std::make_unique<raid::SetDrives>(home_, *layout, planned->superblocks[0],
                                                 planned->regions, planned->lost);
  for (unsigned role = 0; role < group->drives; ++role) {
    set.drives->set_drive(role, *devices[role], candidates[role].name,
                          {.timeout = kNoLimit, .slow_read = kNoLimit});
  }
  set.set = std::make_unique<raid::RaidSet>(home_, *set.drives, nullptr,
                                            raid::RaidSetOptions{
                                                .name = wanted.name,
                                                .largest_update_bytes = kLargestUpdate,
                                                .scratch_bytes = kScratchBytes,
                                                .content = Content::kNone,
                                            });
  set.units = std::make_unique<DestageUnits>(*set.set, profile_.drive_write_bytes);
  set.cached = &cache_->add_device(make_uuid(random_), *set.units);
  sets_.push_back(std::move(set));
  co_return std::string();
}

Task<std::string> VirtualArray::start(std::vector<VolumeGroup> groups) {
  for (std::size_t index = 0; index < groups.size(); ++index) {
    const std::size_t first_set = sets_.size();
    for (unsigned i = 0; i < groups[index].set_count(); ++i) {
      std::string wrong = co_await add_set(&groups[index]);
      if (!wrong.empty()) co_return wrong;
    }
    add_volumes(groups[index], index, first_set);
  }
  co_return std::string();
}

VirtualHost* VirtualArray::add_host(const VolumeGroup& group) {
  auto host = std::make_unique<VirtualHost>();
  host->host =
      std::make_unique<model::Host>(profile_.find_host(group.host)->profile, group.adapters);
  for (unsigned i = 0; i < group.adapters; ++i) {
    // Its latency is told once, at the array's end.
    model::PortProfile adapter = profile_.port;
    adapter.latency = Duration{};
    host->adapters.push_back(std::make_unique<model::Port>(adapter));
  }
  hosts_.push_back(std::move(host));
  return hosts_.back().get();
}

void VirtualArray::add_volumes(const VolumeGroup& group, std::size_t index, std::size_t first_set) {
  std::vector<VirtualHost*> hosts;
  const unsigned count = group.hosts == 0 ? group.volume_count() : group.hosts;
  for (unsigned i = 0; i < count; ++i) hosts.push_back(add_host(group));
  for (unsigned number = 0; number < group.volume_count(); ++number) {
    BlockDevice& place = place_volume(group, number, first_set);
    fronts_.push_back(
        std::make_unique<cache::ReadAhead>(place, streams_, profile_.read_ahead_window_bytes));
    add_volume(group, index, number, hosts);
  }
}

BlockDevice& VirtualArray::place_volume(const VolumeGroup& group, unsigned number,
                                        std::size_t first_set) {
  const std::uint64_t volume = volumes_.size() + 1;
  if (group.members > 0) {
    std::vector<BlockDevice*> sets;
    for (unsigned i = 0; i < group.members; ++i) sets.push_back(sets_[first_set + i].cached);
    const std::uint64_t page_blocks = profile_.page_bytes / 512;
    const std::uint64_t all = sets.front()->geometry().block_count / page_blocks;
    const std::uint64_t wanted = group.volume_bytes / profile_.page_bytes / group.members;
    const std::uint64_t each = group.volume_bytes == 0 ? all / group.volumes : wanted;
    places_.push_back(std::make_unique<Pages>(std::move(sets), page_blocks, number * each,
                                              each * group.members, volume));
    return *places_.back();
  }
  BlockDevice& set = *sets_[first_set + number / group.used_on_set()].cached;
  const std::uint64_t blocks = group.volume_bytes == 0 ? set.geometry().block_count / group.volumes
                                                       : group.volume_bytes / 512;
  const Extent extent{.first = number % group.used_on_set() * blocks, .block_count = blocks};
  places_.push_back(std::make_unique<Slice>(set, extent, volume));
  return *places_.back();
}

void VirtualArray::add_volume(const VolumeGroup& group, std::size_t index, unsigned number,
                              std::vector<VirtualHost*>& hosts) {
  VirtualVolume volume{.group = index, .number = number, .device = fronts_.back().get()};
  volume.host = hosts[number % hosts.size()];
  model::ExchangeParameters parameters = profile_.exchange;
  parameters.target_turnaround = profile_.r2t_time_with(group.connections);
  const std::size_t before = number / hosts.size() * group.connections;
  for (unsigned i = 0; i < group.connections; ++i) {
    model::Port& adapter = *volume.host->adapters[(before + i) % volume.host->adapters.size()];
    model::Port& port = *ports_[next_port_++ % ports_.size()];
    volume.connections.push_back({.exchange = model::Exchange(adapter, port, parameters),
                                  .receiving = std::vector<TimePoint>(profile_.writes_in_transfer),
                                  .in_flight = 0});
  }
  volumes_.push_back(std::move(volume));
}

Task<void> VirtualArray::stop() {
  for (const auto& front : fronts_) co_await front->close();
  co_await cache_->stop();
  for (const Set& set : sets_) {
    co_await set.set->close(kNever);
    co_await set.drives->wait_idle_until(kNever);
  }
}

model::DriveCounters VirtualArray::drive_counters() const {
  model::DriveCounters sum;
  for (const Drive& drive : drives_) {
    const model::DriveCounters& each = drive.timed->model().counters();
    sum.commands += each.commands;
    sum.cache_hits += each.cache_hits;
    sum.background += each.background;
    sum.seeking += each.seeking;
    sum.rotating += each.rotating;
    sum.transferring += each.transferring;
  }
  return sum;
}

}  // namespace sandbay::lab
