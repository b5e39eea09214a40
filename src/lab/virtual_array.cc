// Builds a system out of its profile and takes it apart.
#include "lab/virtual_array.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "raid/assembly.h"

namespace sandbay::lab {
namespace {

// No request of a modelled drive is given up, however long its queue is.
constexpr Duration kNoLimit = std::chrono::hours(24);
// Address space only, all of these. A request may take four times its size, and a pool leaves an
// eighth to small ones.
constexpr std::size_t kPayloadBytes = 5 * kMostBytesUnderWay;
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

// The pages of a set in the order in which volumes take them: one behind the other or all over it.
class PageOrder {
 public:
  PageOrder(std::uint64_t pages, bool scattered) : pages_(pages) {
    if (!scattered || pages < 4) return;
    // Neighbours are apart by the golden section, so that any number of them covers the set evenly.
    step_ = static_cast<std::uint64_t>(static_cast<double>(pages) * 0.6180339887498949);
    while (std::gcd(step_, pages) != 1) ++step_;
  }
  std::uint64_t place(std::uint64_t page) const noexcept { return page * step_ % pages_; }

 private:
  std::uint64_t pages_;  // Of those of a set, 2^32 at most, as drives are.
  std::uint64_t step_ = 1;
};

// A volume whose pages go round several sets.
class Pages final : public BlockDevice {
 public:
  Pages(std::vector<BlockDevice*> sets, PageOrder order, std::uint64_t page_blocks,
        std::uint64_t first_page, std::uint64_t pages, std::uint64_t volume)
      : sets_(std::move(sets)),
        order_(order),
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
      const std::uint64_t place = order_.place(first_page_ + page / sets_.size());
      part.extent = {.first = place * page_blocks_ + at % page_blocks_, .block_count = count};
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
  PageOrder order_;
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

model::BackgroundOptions background_of(const ArrayProfile& profile, const VolumeGroup& group) {
  return {.commands_per_second = static_cast<double>(group.background),
          .read_share = profile.background_read_share,
          .bytes = profile.background_bytes};
}

// Mirrors without a journal note on their drives which regions are being written. A controller
// notes that in memory that survives, so here all are noted before anything is measured.
Task<std::string> note_all_regions(raid::SetDrives* drives) {
  for (std::uint64_t region = 0; region < drives->region_count(); ++region) {
    const Error error = co_await drives->prepare_write(region, true);
    if (error != Error::kNone) co_return std::string(describe(error));
    drives->end_write(region);
    drives->region_verified(region, drives->redundancy_losses(region));
  }
  co_return std::string();
}

cache::CacheOptions cache_options(const ArrayProfile& profile, unsigned members,
                                  double time_scale) {
  cache::CacheOptions options;
  const auto stretched = [time_scale](Duration modelled) {
    return std::chrono::duration_cast<Duration>(modelled * time_scale);
  };
  options.age_limit = stretched(options.age_limit);
  options.idle_flush = stretched(options.idle_flush);
  options.memory_bytes = profile.cache_bytes * members;
  options.dirty_limit_bytes = profile.dirty_bytes * members;
  options.low_watermark = static_cast<double>(profile.flush_mark_percent) / 100;
  options.high_watermark = (1 + options.low_watermark) / 2;
  options.destages_in_flight = static_cast<unsigned>(profile.destages_in_flight);
  options.read_ahead_limit_bytes = profile.read_ahead_bytes * members;
  options.read_ahead_share =
      static_cast<double>(profile.read_ahead_bytes) / static_cast<double>(profile.cache_bytes);
  options.content = Content::kNone;
  return options;
}

}  // namespace

VirtualConnection& VirtualVolume::choose_connection() {
  std::size_t best = next_connection;
  for (std::size_t i = 1; !in_turn && i < connections.size(); ++i) {
    const std::size_t other = (next_connection + i) % connections.size();
    if (connections[other].in_flight < connections[best].in_flight) best = other;
  }
  next_connection = (best + 1) % connections.size();
  return connections[best];
}

unsigned member_count(const std::vector<VolumeGroup>& groups) {
  unsigned members = 1;
  for (const VolumeGroup& group : groups) members = std::max(members, group.members);
  return members;
}

VirtualArray::VirtualArray(Executor& home, const ArrayProfile& profile, unsigned members,
                           std::uint64_t seed, double time_scale)
    : home_(home),
      profile_(profile),
      random_(seed),
      clock_(time_scale, home.now()),
      type_(profile.drive),
      payloads_(home, kPayloadBytes, Content::kNone) {
  for (std::uint64_t i = 0; i < profile.controller_count; ++i) add_head(members);
}

void VirtualArray::add_head(unsigned members) {
  auto head = std::make_unique<Head>();
  head->controller = std::make_unique<model::Controller>(of_all(profile_.controller, members));
  if (profile_.cache_bytes > 0) {
    head->cache = std::make_unique<cache::Cache>(
        home_, cache_options(profile_, members, clock_.time_scale()));
  }
  head->streams.memory_bytes = profile_.read_ahead_bytes * members;
  head->streams.largest_window_bytes = profile_.read_ahead_window_bytes;
  for (std::uint64_t i = 0; i < profile_.port_count * members; ++i) {
    head->ports.push_back(std::make_unique<model::Port>(profile_.port));
  }
  heads_.push_back(std::move(head));
}

// Whose that set of a group is.
VirtualArray::Head& VirtualArray::head_of(const VolumeGroup& group, unsigned set) {
  if (group.controllers > 0) return *heads_[set / group.sets];
  // Sets that share volumes are behind the same one.
  if (set % group.spread_sets() == 0) ++next_head_;
  return *heads_[(next_head_ - 1) % heads_.size()];
}

VirtualArray::~VirtualArray() {
  fronts_.clear();
  places_.clear();
  heads_.clear();
}

BlockDevice& VirtualArray::add_drive(const VolumeGroup& group) {
  Drive drive;
  drive.medium = std::make_unique<Nothing>(home_, profile_.sectors_of_drive());
  drive.timed = std::make_unique<model::ModelledDrive>(
      *drive.medium, clock_,
      type_.make({.seed = random_.next(), .background = background_of(profile_, group)}),
      model::ModelledDriveOptions{.name = profile_.drive.name,
                                  .first_sector = profile_.first_byte / 512});
  drive.timed->begin_time();
  drives_.push_back(std::move(drive));
  return *drives_.back().timed;
}

// A set whose redundancy has been verified long ago.
Task<std::string> VirtualArray::add_set(const VolumeGroup* group, Head* head) {
  std::vector<raid::Candidate> candidates;
  std::vector<BlockDevice*> devices;
  for (unsigned i = 0; i < group->drives; ++i) {
    devices.push_back(&add_drive(*group));
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
  const auto layout = planned->superblocks[0].layout();
  if (!layout) co_return layout.error();
  planned->regions.set_all_dirty(layout->mirrored());

  Set set;
  set.head = head;
  set.drives = std::make_unique<raid::SetDrives>(home_, *layout, planned->superblocks[0],
                                                 planned->regions, planned->lost);
  for (unsigned role = 0; role < group->drives; ++role) {
    set.drives->set_drive(role, *devices[role], candidates[role].name,
                          {.timeout = kNoLimit, .slow_read = kNoLimit});
  }
  if (layout->mirrored()) {
    std::string wrong = co_await note_all_regions(set.drives.get());
    if (!wrong.empty()) co_return wrong;
  }
  set.set = std::make_unique<raid::RaidSet>(home_, *set.drives, nullptr,
                                            raid::RaidSetOptions{
                                                .name = wanted.name,
                                                .largest_update_bytes = kLargestUpdate,
                                                .scratch_bytes = kScratchBytes,
                                                .content = Content::kNone,
                                                .nearest_mirror = profile_.nearest_mirror,
                                            });
  set.top = set.set.get();
  if (head->cache) {
    const std::uint64_t bytes = profile_.drive_write_bytes;
    const std::uint64_t stripes = bytes == 0 ? 1 : layout->stripes_with(bytes);
    set.top =
        &head->cache->add_device(make_uuid(random_), *set.set, static_cast<std::uint32_t>(stripes));
  }
  sets_.push_back(std::move(set));
  co_return std::string();
}

Task<std::string> VirtualArray::start(std::vector<VolumeGroup> groups) {
  for (std::size_t index = 0; index < groups.size(); ++index) {
    const std::size_t first_set = sets_.size();
    for (unsigned i = 0; i < groups[index].set_count(); ++i) {
      std::string wrong = co_await add_set(&groups[index], &head_of(groups[index], i));
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
  const unsigned volumes = group.volume_count();
  const unsigned of_copy = volumes / group.copies();
  const unsigned hosts = group.hosts == 0 ? of_copy : group.hosts;
  const std::size_t first_host = hosts_.size();
  for (unsigned i = 0; i < hosts * group.copies(); ++i) add_host(group);
  for (unsigned number = 0; number < volumes; ++number) {
    const Set& set = sets_[first_set + number / group.used_on_set() * group.spread_sets()];
    BlockDevice& place = place_volume(group, number, first_set);
    VirtualVolume volume{.group = index, .number = number, .device = &place};
    if (set.head->cache) {
      fronts_.push_back(std::make_unique<cache::ReadAhead>(place, set.head->streams));
      volume.device = fronts_.back().get();
    }
    volume.bytes = group.part_bytes(place.geometry().block_count * 512);
    volume.controller = set.head->controller.get();
    const std::size_t first_of_copy = first_host + number / of_copy * hosts;
    for (unsigned i = 0; i < group.workers; ++i) {
      // In turn over the hosts; where each volume has its own, its workers share that.
      const unsigned in_copy = number % of_copy;
      const unsigned turn = group.hosts == 0 ? in_copy : in_copy * group.workers + i;
      volume.host = hosts_[first_of_copy + turn % hosts].get();
      volume.first_byte = i * volume.bytes;
      add_worker(volume, group, *set.head, group.hosts == 0 ? i : turn / hosts);
    }
  }
}

BlockDevice& VirtualArray::place_volume(const VolumeGroup& group, unsigned number,
                                        std::size_t first_set) {
  const std::uint64_t volume = places_.size() + 1;
  const unsigned in_set = number % group.used_on_set();
  first_set += number / group.used_on_set() * group.spread_sets();
  if (cache::Cache* const cache = sets_[first_set].head->cache.get()) {
    cache->set_mode(volume,
                    profile_.write_back ? cache::Mode::kWriteBack : cache::Mode::kWriteThrough);
  }
  if (group.in_pages()) return place_in_pages(group, in_set, first_set, volume);
  BlockDevice& set = *sets_[first_set].top;
  const std::uint64_t blocks = group.volume_bytes == 0 ? set.geometry().block_count / group.volumes
                                                       : group.volume_bytes / 512;
  const Extent extent{.first = group.offset_bytes / 512 + in_set * blocks, .block_count = blocks};
  places_.push_back(std::make_unique<Slice>(set, extent, volume));
  return *places_.back();
}

// The volume `in_set` of those that go round the same sets.
BlockDevice& VirtualArray::place_in_pages(const VolumeGroup& group, unsigned in_set,
                                          std::size_t first_set, std::uint64_t volume) {
  std::vector<BlockDevice*> sets;
  const unsigned count = group.spread_sets();
  for (unsigned i = 0; i < count; ++i) sets.push_back(sets_[first_set + i].top);
  const std::uint64_t page_blocks = profile_.page_bytes / 512;
  const std::uint64_t all = sets.front()->geometry().block_count / page_blocks;
  const std::uint64_t wanted = group.volume_bytes / profile_.page_bytes / count;
  const std::uint64_t each = group.volume_bytes == 0 ? all / group.volumes : wanted;
  const std::uint64_t pages = each * count;
  places_.push_back(std::make_unique<Pages>(std::move(sets),
                                            PageOrder(all, profile_.scattered_pages), page_blocks,
                                            in_set * each, pages, volume));
  if (group.offset_bytes == 0) return *places_.back();
  const std::uint64_t first = group.offset_bytes / 512;
  const Extent part{.first = first, .block_count = pages * page_blocks - first};
  BlockDevice& whole = *places_.back();
  places_.push_back(std::make_unique<Slice>(whole, part, volume));
  return *places_.back();
}

// `before` workers of the same host have their connections already.
void VirtualArray::add_worker(VirtualVolume volume, const VolumeGroup& group, Head& head,
                              std::size_t before) {
  model::ExchangeParameters parameters = profile_.exchange;
  parameters.target_turnaround = profile_.pace.turnaround_with(group.connections);
  volume.in_turn = group.in_turn;
  const auto& adapters = volume.host->adapters;
  for (unsigned i = 0; i < group.connections; ++i) {
    model::Port& adapter = *adapters[(before * group.connections + i) % adapters.size()];
    model::Port& port = *head.ports[head.next_port++ % head.ports.size()];
    volume.connections.push_back({.adapter = &adapter,
                                  .port = &port,
                                  .exchange = model::Exchange(adapter, port, parameters),
                                  .receiving = std::vector<TimePoint>(profile_.pace.at_once),
                                  .in_flight = 0});
  }
  volumes_.push_back(std::move(volume));
}

Task<void> VirtualArray::stop() {
  for (const auto& front : fronts_) co_await front->close();
  for (const auto& head : heads_) {
    if (head->cache) co_await head->cache->stop();
  }
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
