// What is expected of a block that a failed write may or may not have changed is not known; the rig
// therefore takes any error of a write for a failure of the test.
#include "controller_rig.h"
#include "tests/unit/random_fill.h"

#include <algorithm>

#include <fmt/core.h>

namespace sandbay::raidtest {

namespace {

constexpr std::uint64_t kPieceBytes = 256 << 10;

}  // namespace

ControllerRig::~ControllerRig() = default;

TestDrive& ControllerRig::add(std::string name, std::uint64_t byte_count,
                              std::uint32_t its_block_bytes) {
  drives.push_back(
      std::make_unique<TestDrive>(home_, std::move(name), byte_count, its_block_bytes));
  drives.back()->set_latency(std::chrono::microseconds(100));
  return *drives.back();
}

TestDrive& ControllerRig::drive(const std::string& name) {
  for (const auto& each : drives) {
    if (each->description() == name) return *each;
  }
  FAIL("no drive " << name);
  return *drives.front();
}

std::vector<raid::NamedDevice> ControllerRig::named() const {
  std::vector<raid::NamedDevice> all;
  for (const auto& each : drives) all.push_back({each->description(), each.get()});
  return all;
}

Task<void> ControllerRig::start(std::vector<raid::NamedDevice> these) {
  controller = std::make_unique<Controller>(home_, options);
  controller->on_event([this](const ControllerEvent& event) { events.push_back(event); });
  controller->on_record([this](Uuid uuid, raid::Event event) -> Task<Error> {
    remembered.minimum_events[uuid] = event;
    return [](Executor* home) -> Task<Error> {
      co_await home->sleep_for(std::chrono::microseconds(50));
      co_return Error::kNone;
    }(&home_);
  });
  lines = co_await controller->start(these.empty() ? named() : std::move(these), remembered);
  set = controller->find("set");
}

Task<bool> ControllerRig::stop(Duration within) {
  const bool stopped = co_await controller->stop(home_.now() + within);
  if (stopped) controller.reset();
  set = nullptr;
  co_return stopped;
}

Task<void> ControllerRig::kill() {
  for (const auto& each : drives) each->fail_with(Error::kNotReady);
  const bool stopped = co_await stop();
  REQUIRE(stopped);
  for (const auto& each : drives) each->fail_with(Error::kNone);
}

Task<std::string> ControllerRig::create(raid::Level level, std::vector<std::string> names,
                                        std::function<void(NewSet&)> change) {
  NewSet wanted;
  wanted.name = "set";
  wanted.level = level;
  wanted.strip_bytes = 16384;
  const bool parity = level == raid::Level::kRaid5 || level == raid::Level::kRaid6 ||
                      level == raid::Level::kRaid50 || level == raid::Level::kRaid60;
  if (parity && options.set.nvram == nullptr) wanted.journal_bytes = kJournalBytes;
  if (change) change(wanted);
  auto made = co_await controller->create_set(wanted, std::move(names));
  if (!made) co_return made.error();
  set = *made;
  block_bytes = set->geometry().block_bytes;
  const Geometry& geometry = set->geometry();
  expected.assign(geometry.block_count * geometry.block_bytes, std::byte{0});
  co_return std::string();
}

Task<std::string> ControllerRig::write(Lba first, std::uint64_t blocks, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> bytes(blocks * block_bytes);
  testing::fill_random(bytes, random);
  Request request;
  request.operation = Operation::kWrite;
  request.extent = {.first = first, .block_count = blocks};
  request.data = co_await home_.buffers().allocate(bytes.size());
  request.data.copy_from(bytes);
  std::memcpy(expected.data() + first * block_bytes, bytes.data(), bytes.size());
  const Completion done = co_await set->submit(std::move(request));
  if (done.error == Error::kNone) co_return std::string();
  co_return fmt::format("writing block {}: {}", first, sandbay::describe(done.error));
}

Task<std::string> ControllerRig::read(Lba first, std::uint64_t blocks) {
  Request request;
  request.extent = {.first = first, .block_count = blocks};
  request.data = co_await home_.buffers().allocate(blocks * block_bytes);
  const Completion done = co_await set->submit(std::move(request));
  if (done.error != Error::kNone) {
    co_return fmt::format("reading block {}: {}", first, sandbay::describe(done.error));
  }
  std::vector<std::byte> bytes(blocks * block_bytes);
  done.data.copy_to(bytes);
  for (std::uint64_t block = 0; block < blocks; ++block) {
    const std::size_t at = block * block_bytes;
    if (std::memcmp(bytes.data() + at, expected.data() + first * block_bytes + at, block_bytes) ==
        0) {
      continue;
    }
    co_return fmt::format("block {} is wrong", first + block);
  }
  co_return std::string();
}

Task<std::string> ControllerRig::fill() {
  const std::uint64_t blocks = set->geometry().block_count;
  const std::uint64_t piece = kPieceBytes / block_bytes;
  for (Lba first = 0; first < blocks; first += piece) {
    std::string wrong =
        co_await write(first, std::min(piece, blocks - first), home_.random().next());
    if (!wrong.empty()) co_return wrong;
  }
  co_return std::string();
}

Task<std::string> ControllerRig::write_some(unsigned count) {
  const std::uint64_t blocks = set->geometry().block_count;
  for (unsigned i = 0; i < count; ++i) {
    const std::uint64_t length = 1 + home_.random().below(100);
    const Lba first = home_.random().below(blocks - length);
    std::string wrong = co_await write(first, length, home_.random().next());
    if (!wrong.empty()) co_return wrong;
  }
  co_return std::string();
}

Task<std::string> ControllerRig::check() {
  const std::uint64_t blocks = set->geometry().block_count;
  const std::uint64_t piece = kPieceBytes / block_bytes;
  for (Lba first = 0; first < blocks; first += piece) {
    std::string wrong = co_await read(first, std::min(piece, blocks - first));
    if (!wrong.empty()) co_return wrong;
  }
  co_return std::string();
}

Task<void> ControllerRig::sleep(Duration duration) { co_await home_.sleep_for(duration); }

Task<bool> ControllerRig::wait_for(std::function<bool()> holds) {
  const TimePoint until = home_.now() + std::chrono::minutes(2);
  while (!holds() && home_.now() < until) co_await home_.sleep_for(std::chrono::milliseconds(50));
  co_return holds();
}

bool ControllerRig::whole() const {
  if (set == nullptr || !set->running()) return false;
  if (!set->drives()->optimal() || !set->maintenance()->idle()) return false;
  for (unsigned role = 0; role < set->superblock().drive_count(); ++role) {
    if (set->drives()->replacement(role) != nullptr) return false;
  }
  return true;
}

DriveInfo ControllerRig::info(const std::string& name) const {
  for (DriveInfo& each : controller->show_drives()) {
    if (each.name == name) return each;
  }
  FAIL("no drive " << name << " is shown");
  return {};
}

SetInfo ControllerRig::set_info() const {
  for (SetInfo& each : controller->show_sets()) {
    if (each.name == "set") return each;
  }
  FAIL("the set is not shown");
  return {};
}

unsigned ControllerRig::told(SetEvent::Kind kind) const {
  return static_cast<unsigned>(std::ranges::count(events, kind, &ControllerEvent::kind));
}

bool ControllerRig::said(const std::string& part) const {
  const auto has = [&part](const std::string& text) {
    return text.find(part) != std::string::npos;
  };
  return std::ranges::any_of(lines, has) ||
         std::ranges::any_of(events, has, &ControllerEvent::text);
}

}  // namespace sandbay::raidtest
