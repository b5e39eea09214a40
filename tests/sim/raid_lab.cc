// Starting and stopping a set, host operations with their place in the model, and the comparison of
// every member with what was read.
#include "raid_lab.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <fmt/core.h>

#include "nvram/nvram.h"
#include "raid/assembly.h"
#include "raid/drive_metadata.h"

namespace sandbay::raidtest {

using namespace sandbay::raid;

namespace {

constexpr std::uint64_t kNvramJournalBytes = std::uint64_t{256} << 10;

// The field of 256 elements over x^8 + x^4 + x^3 + x^2 + 1, by shifting.
std::uint8_t twice(std::uint8_t value) {
  const unsigned carry = (value & 0x80U) != 0 ? 0x1dU : 0U;
  return static_cast<std::uint8_t>(unsigned{value} << 1U ^ carry);
}

}  // namespace

RaidLab::RaidLab(Executor& executor, LabShape its_shape, LabState state, BlockModel its_model)
    : home(executor),
      shape(its_shape),
      model(std::move(its_model)),
      minimum_event(state.minimum_event),
      set_uuid_(state.set),
      host_boots_(state.host_boots) {
  for (LabDrive& drive : state.drives) {
    devices.push_back(std::make_unique<TestDrive>(home, drive.name, shape.drive_bytes()));
    devices.back()->state() = std::move(drive.state);
    devices.back()->data_from = shape.data_offset_bytes() / kModelBlockBytes;
    role_of.push_back(drive.role);
    present_.push_back(drive.present);
  }
  if (state.board) board_ = std::make_unique<nvram::SimulatedBoard>(*std::move(state.board));
}

RaidLab::~RaidLab() = default;

std::vector<NamedDevice> RaidLab::present() const {
  std::vector<NamedDevice> named;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (present_[i]) named.push_back({devices[i]->description(), devices[i].get()});
  }
  return named;
}

Task<std::string> RaidLab::format() {
  const std::vector<Candidate> candidates = co_await gather_candidates(present());
  NewSet wanted;
  wanted.name = "set";
  wanted.level = shape.level;
  wanted.group_count = shape.level == Level::kRaid10 || shape.level == Level::kRaid50 ||
                               shape.level == Level::kRaid60
                           ? shape.group_count()
                           : 0;
  wanted.strip_bytes = shape.strip_bytes;
  wanted.region_stripes = region_stripes;
  wanted.integrity = shape.integrity;
  wanted.journal_bytes = shape.journaled() && !shape.nvram ? shape.journal_bytes : 0;
  auto planned = plan_new_set(wanted, candidates, home.random());
  if (!planned) co_return planned.error();
  if (!shape.unverified) planned->regions.set_all_dirty(false);
  const auto regions =
      std::make_shared<const std::vector<std::byte>>(planned->regions.encode_next());
  const auto lost = std::make_shared<const std::vector<std::byte>>(planned->lost.encode_next());
  for (std::size_t role = 0; role < candidates.size(); ++role) {
    DriveMetadata metadata(*devices[role]);
    const Error first = co_await metadata.write_region_map(regions);
    const Error second = co_await metadata.write_lost_sectors(lost);
    const Error third = co_await metadata.write_superblock(planned->superblocks[role]);
    if (first != Error::kNone || second != Error::kNone || third != Error::kNone) {
      co_return "metadata cannot be written";
    }
  }
  set_uuid_ = planned->superblocks[0].set_uuid;
  minimum_event = planned->superblocks[0].event;
  co_return std::string();
}

Task<std::string> RaidLab::open_nvram() {
  nvram::NvramOptions options;
  options.path = "board";
  options.boot_id = fmt::format("boot {}", host_boots_);
  options.durability =
      shape.host_durable_nvram ? nvram::Durability::kHost : nvram::Durability::kProcess;
  options.power_loss_only_emulated = true;
  auto opened = co_await nvram::Nvram::open(home, *board_, options);
  if (!opened) co_return opened.error();
  nvram_ = std::move(*opened);
  co_return std::string();
}

Task<std::string> RaidLab::boot() {
  if (board_ != nullptr) {
    const std::string problem = co_await open_nvram();
    if (!problem.empty()) co_return problem;
  }
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (present_[i]) numbers.push_back(i);
  }
  const std::vector<Candidate> candidates = co_await gather_candidates(present());
  Remembered remembered;
  remembered.minimum_events[set_uuid_] = minimum_event;
  Assembly assembly = assemble(candidates, remembered);
  for (const std::string& line : assembly.lines) events.push_back(line);
  if (assembly.sets.size() != 1) co_return fmt::format("{} sets found", assembly.sets.size());
  AssembledSet& found = assembly.sets[0];
  if (!found.startable) co_return found.refusal;
  std::vector<SetMember> members(shape.drives);
  std::vector<SetMember> replacements(shape.drives);
  std::ranges::fill(role_of, -1);
  for (unsigned role = 0; role < shape.drives; ++role) {
    const AssembledRole& here = found.roles[role];
    // As the controller has it: what failed does not come back by itself.
    const bool failed = here.verdict == Verdict::kReturning &&
                        found.superblock.roles[role].state == RoleState::kFailed;
    if (here.drive && here.verdict != Verdict::kStale && !failed) {
      const std::size_t number = numbers[*here.drive];
      members[role] = {devices[number].get(), devices[number]->description()};
      role_of[number] = static_cast<int>(role);
    }
    if (here.replacement) {
      const std::size_t number = numbers[*here.replacement];
      replacements[role] = {devices[number].get(), devices[number]->description()};
      role_of[number] = static_cast<int>(role);
    }
  }
  ManagedSetOptions options;
  options.maintenance = maintenance;
  options.drive_policy = drive_policy;
  options.nvram = shared_nvram != nullptr ? shared_nvram : nvram_.get();
  options.nvram_journal_bytes = kNvramJournalBytes;
  set = std::make_unique<ManagedSet>(home, found.superblock, options);
  set->on_event([this](const ManagedSet&, SetEvent event) { note(std::move(event)); });
  set->on_record([this](Uuid, raid::Event event) { return remember(event); });
  const auto started =
      co_await set->start(std::move(found), std::move(members), std::move(replacements));
  if (!started) co_return started.error();
  co_return std::string();
}

void RaidLab::note(SetEvent event) {
  using Kind = SetEvent::Kind;
  const std::uint64_t bit = event.role < 64 ? std::uint64_t{1} << event.role : 0;
  if (event.kind == Kind::kRebuildStarted || event.kind == Kind::kDriveReplaced) mending_ |= bit;
  if (event.kind == Kind::kRebuildEnded || event.kind == Kind::kCopyEnded) mending_ &= ~bit;
  events.push_back(std::move(event.text));
}

Task<Error> RaidLab::remember(raid::Event event) {
  minimum_event = event;
  co_return Error::kNone;
}

Task<void> RaidLab::stop() {
  if (set != nullptr) {
    const Error error = co_await set->stop(kNever);
    if (error != Error::kNone && !errors_expected) {
      wrong.push_back(fmt::format("stopping: {}", describe(error)));
    }
    set.reset();
  }
  if (nvram_ != nullptr) {
    const Error error = co_await nvram_->close();
    if (error != Error::kNone) wrong.push_back("closing the NVRAM");
    nvram_.reset();
  }
}

// ---- the host -----------------------------------------------------------------------------------

Task<Error> RaidLab::write(Extent extent, bool force_unit_access) {
  Request request;
  request.operation = Operation::kWrite;
  request.extent = extent;
  request.force_unit_access = force_unit_access;
  const std::size_t byte_count = extent.byte_count(kModelBlockBytes);
  request.data = co_await home.buffers().allocate(byte_count);
  const std::uint64_t version = model.begin_write(extent, false);
  last_version = version;
  std::vector<std::byte> bytes(byte_count);
  for (std::uint64_t i = 0; i < extent.block_count; ++i) {
    put_version(std::span(bytes).subspan(i * kModelBlockBytes, kModelBlockBytes), extent.first + i,
                version);
  }
  request.data.copy_from(bytes);
  const Error error = co_await change(std::move(request), version);
  co_return error;
}

Task<Error> RaidLab::zero(Extent extent, bool unmap) {
  Request request;
  request.operation = unmap ? Operation::kUnmap : Operation::kWriteZeroes;
  request.extent = extent;
  const std::uint64_t version = model.begin_write(extent, true);
  const Error error = co_await change(std::move(request), version);
  co_return error;
}

Task<Error> RaidLab::change(Request request, std::uint64_t version) {
  const bool durable = request.force_unit_access;
  const bool zeroes = request.operation != Operation::kWrite;
  bool reaches_drives = prepare && prepare(request);
  if (on_drives) on_drives->begin_write(request.extent, zeroes);
  const Completion done = co_await host_side().submit(std::move(request));
  if (done.error == Error::kNone) {
    const bool only_now = !reaches_drives && reached_drives && reached_drives(durable);
    reaches_drives = reaches_drives || only_now;
    model.end_write(version, durable);
    if (on_drives) on_drives->end_write(version, reaches_drives);
    if (only_now && acknowledged) acknowledged();
  }
  co_return done.error;
}

Task<Error> RaidLab::flush() {
  Request request;
  request.operation = Operation::kFlush;
  const std::uint64_t begun = model.begin_flush();
  const std::uint64_t begun_on_drives = on_drives ? on_drives->begin_flush() : 0;
  const bool reaches_drives = prepare && prepare(request);
  const Completion done = co_await host_side().submit(std::move(request));
  if (done.error == Error::kNone) {
    model.end_flush(begun);
    if (on_drives && reaches_drives) on_drives->end_flush(begun_on_drives);
  }
  co_return done.error;
}

Task<Error> RaidLab::read(Extent extent) {
  Request request;
  request.extent = extent;
  request.data = co_await home.buffers().allocate(extent.byte_count(kModelBlockBytes));
  const std::uint64_t begun = model.begin_read();
  if (prepare) prepare(request);
  const Completion done = co_await host_side().submit(std::move(request));
  if (done.data.byte_count() != extent.byte_count(kModelBlockBytes)) {
    wrong.push_back("a read gives another number of bytes than were asked for");
    model.fail_read();
    co_return done.error;
  }
  if (done.error != Error::kNone) {
    model.fail_read();
    co_return done.error;
  }
  std::vector<std::byte> bytes(done.data.byte_count());
  done.data.copy_to(bytes);
  std::string problem = model.end_read(extent.first, bytes, begun);
  if (!problem.empty()) wrong.push_back("read: " + std::move(problem));
  co_return done.error;
}

Task<void> RaidLab::something() {
  Random& random = home.random();
  const std::uint64_t blocks = model.block_count();
  const std::uint64_t stripe = shape.data_chunks() * shape.strip_blocks();
  // Sizes: a few blocks, about a strip, about a stripe, whole stripes. Half of all operations meet
  // in one part of the set.
  const std::array<std::uint64_t, 3> most = {4, shape.strip_blocks(), stripe * 2};
  std::uint64_t count = 1 + random.below(most[random.below(3)]);
  Lba first = random.below(random.chance(0.5) ? blocks : std::min(stripe * 2, blocks));
  if (random.chance(0.2)) {
    first = first / stripe * stripe;
    count = stripe * (1 + random.below(2));
  }
  const Extent extent{.first = first, .block_count = std::min(count, blocks - first)};
  const std::uint64_t kind = random.below(100);
  const TimePoint began = home.now();
  Error error = Error::kNone;
  if (kind < 60) {
    error = co_await write(extent, random.chance(0.15));
  } else if (kind < 72) {
    error = co_await zero(extent, random.chance(0.5));
  } else if (kind < 84) {
    error = co_await flush();
  } else {
    error = co_await read(extent);
  }
  const bool excused = errors_expected || (excuses && excuses(extent, error, began));
  if (error != Error::kNone && !excused) {
    wrong.push_back(fmt::format("an operation at block {} ended with: {}", first, describe(error)));
  }
}

Task<void> RaidLab::one_of(unsigned* left, unsigned* running, Condition* ended) {
  while (*left > 0) {
    --*left;
    co_await something();
  }
  if (--*running == 0) ended->notify_all();
}

Task<void> RaidLab::load(unsigned operations, unsigned depth) {
  unsigned left = operations;
  unsigned running = depth;
  Condition ended;
  for (unsigned i = 0; i < depth; ++i) spawn(one_of(&left, &running, &ended));
  while (running > 0) co_await ended.wait();
}

Task<Error> RaidLab::read_all(std::vector<std::byte>* bytes) {
  Request request;
  request.extent = {.first = 0, .block_count = model.block_count()};
  request.data = co_await home.buffers().allocate(request.extent.byte_count(kModelBlockBytes));
  const Completion done = co_await host_side().submit(std::move(request));
  bytes->resize(done.data.byte_count());
  done.data.copy_to(*bytes);
  co_return done.error;
}

Task<void> RaidLab::wait_idle() { co_await set->maintenance()->wait_idle(); }

// ---- drives -------------------------------------------------------------------------------------

unsigned RaidLab::add_drive(std::string name) {
  devices.push_back(std::make_unique<TestDrive>(home, std::move(name), shape.drive_bytes()));
  devices.back()->data_from = shape.data_offset_bytes() / kModelBlockBytes;
  role_of.push_back(-1);
  present_.push_back(true);
  if (before_change_) observe(before_change_);
  return static_cast<unsigned>(devices.size() - 1);
}

Task<void> RaidLab::take_spare(unsigned role, unsigned drive) {
  role_of[drive] = static_cast<int>(role);
  mending_ |= std::uint64_t{1} << role;
  set_drives().take_role(role, *devices[drive], devices[drive]->description(), drive_policy,
                         make_uuid(home.random()), false);
  const Error error = co_await set_drives().settled();
  if (error != Error::kNone && !errors_expected) wrong.push_back("a spare is not settled");
  if (set->maintenance() != nullptr) set->maintenance()->wake();
}

Task<void> RaidLab::return_drive(unsigned role, unsigned drive) {
  if (set_drives().drive(role) != nullptr || !set_drives().idle(*devices[drive])) co_return;
  const Uuid uuid = set_drives().superblock().roles[role].drive;
  mending_ |= std::uint64_t{1} << role;
  set_drives().take_role(role, *devices[drive], devices[drive]->description(), drive_policy, uuid,
                         true);
  const Error error = co_await set_drives().settled();
  if (error != Error::kNone && !errors_expected) wrong.push_back("a return is not settled");
  if (set->maintenance() != nullptr) set->maintenance()->wake();
}

Task<void> RaidLab::begin_copy(unsigned role, unsigned drive) {
  role_of[drive] = static_cast<int>(role);
  set_drives().begin_replacement(role, *devices[drive], devices[drive]->description(), drive_policy,
                                 make_uuid(home.random()));
  const Error error = co_await set_drives().settled();
  if (error != Error::kNone && !errors_expected) wrong.push_back("a replacement is not settled");
  if (set->maintenance() != nullptr) set->maintenance()->wake();
}

LabState RaidLab::fork() const {
  LabState state;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    state.drives.push_back({.state = devices[i]->state(),
                            .name = devices[i]->description(),
                            .role = role_of[i],
                            .present = present_[i]});
  }
  state.minimum_event = minimum_event;
  state.set = set_uuid_;
  if (board_ != nullptr) state.board = *board_;
  state.host_boots = host_boots_;
  return state;
}

std::uint64_t RaidLab::doubtful_roles() const {
  if (set == nullptr || set->drives() == nullptr) return 0;
  return set->drives()->absent_roles() | set->drives()->stale_roles() | mending_;
}

void RaidLab::observe(std::function<void()> before_change) {
  before_change_ = std::move(before_change);
  for (const auto& device : devices) {
    device->before_change = [this](const TestDrive&, const Request&) { before_change_(); };
  }
}

// ---- members ------------------------------------------------------------------------------------

std::string RaidLab::check_members(const std::vector<std::byte>& bytes) const {
  for (std::uint64_t stripe = 0; stripe < shape.stripe_count(); ++stripe) {
    std::string problem = check_stripe(stripe, bytes);
    if (!problem.empty()) return problem;
  }
  return {};
}

std::string RaidLab::check_stripe(std::uint64_t stripe, const std::vector<std::byte>& bytes) const {
  const std::size_t strip = shape.strip_bytes;
  const unsigned k = shape.data_chunks();
  const auto data = [&](unsigned chunk) {
    return std::span(bytes).subspan((stripe * k + chunk) * strip, strip);
  };
  std::vector<std::byte> p(strip);
  std::vector<std::byte> q(strip);
  for (unsigned chunk = k; shape.parity() && chunk-- > 0;) {
    const auto from = data(chunk);
    for (std::size_t i = 0; i < strip; ++i) {
      p[i] ^= from[i];
      q[i] = static_cast<std::byte>(twice(static_cast<std::uint8_t>(q[i]))) ^ from[i];
    }
  }
  std::vector<std::byte> raw(strip);
  const MemberSet unreadable = set->drives()->unreadable(stripe);
  for (unsigned member = 0; member < shape.width(); ++member) {
    if ((unreadable >> member & 1) != 0) continue;
    const unsigned role = shape.role(stripe, member);
    const Drive* drive = set->drives()->drive(role);
    for (const auto& device : devices) {
      if (drive == nullptr || device.get() != &drive->device()) continue;
      device->state().visible.read(shape.data_offset_bytes() + stripe / shape.group_count() * strip,
                                   raw);
      std::span<const std::byte> wanted = data(shape.mirrored() ? 0 : std::min(member, k - 1));
      if (!shape.mirrored() && member == k) wanted = p;
      if (!shape.mirrored() && member == k + 1) wanted = q;
      if (std::memcmp(raw.data(), wanted.data(), strip) == 0) continue;
      std::size_t at = 0;
      while (raw[at] == wanted[at]) ++at;
      return fmt::format("stripe {}: member {} on role {} ({}) does not fit what is read, row {}",
                         stripe, member, role, device->description(), at / kModelBlockBytes);
    }
  }
  return {};
}

}  // namespace sandbay::raidtest
