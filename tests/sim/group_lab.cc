// Starting, checking and ending a group in a world.
#include "group_lab.h"

#include <fmt/core.h>

#include <utility>

#include "group/configuration.h"
#include "metadata/simulated_store.h"

namespace sandbay::simtest {

namespace {

constexpr std::uint16_t kPort = 3260;
constexpr std::size_t kMostEntries = 100'000;

std::string set_text(const std::string& member, const std::string& set, const std::string& level,
                     unsigned drives, unsigned megabytes) {
  const bool first = member == "array1";
  const std::string scope = first ? "" : "member.";
  std::string text = first ? "" : fmt::format("[[member]]\nname = \"{}\"\n", member);
  std::string names;
  for (unsigned i = 0; i < drives; ++i) {
    const std::string name = fmt::format("{}{}", set, i);
    text += fmt::format(
        "[[{}drive]]\nname = \"{}\"\nfile = \"drives/{}\"\nsize = \"{}MiB\"\nenclosure = \"{}\"\n",
        scope, name, name, megabytes, member);
    names += fmt::format("{}\"{}\"", i == 0 ? "" : ", ", name);
  }
  return text + fmt::format(
                    "[[{}raid]]\nname = \"{}\"\nlevel = \"{}\"\ndrives = [{}]\n"
                    "journal = \"1MiB\"\n",
                    scope, set, level, names);
}

std::string nvram_text(const std::string& scope, bool cached, bool mirrored) {
  if (!cached) return fmt::format("[{}nvram]\nsize = \"2MiB\"\ndurability = \"host\"\n", scope);
  return fmt::format(
      "[{0}nvram]\nsize = \"24MiB\"\npower_loss_only_emulated = true\n{1}"
      "[{0}cache]\nmemory = \"16MiB\"\nnvram = \"18MiB\"\nidle_flush = \"20ms\"\n"
      "age_limit = \"100ms\"\n",
      scope, mirrored ? fmt::format("mirror = \"{}\"\n", GroupLab::kMirror) : "");
}

}  // namespace

group::Configuration GroupShape::configuration() const {
  std::string text = fmt::format(
      "[group]\nname = \"sim\"\nstate = \"/simulated\"\n"
      "[[portal]]\nlisten = \"127.0.0.1:{}\"\n",
      kPort);
  text += set_text("array1", "a", "raid1", 2, 20);
  text += nvram_text("", cached, weak == Weak::kMirror);
  text += set_text("array2", "b", "jbod", 1, 20);
  if (cached) text += nvram_text("member.", cached, false);
  text += set_text("array3", "c", "raid5", 3, 10);
  text += set_text("array4", "d", "jbod", 1, 16);
  text += set_text("rack", "solo", "jbod", 1, 12);
  text += "[[pool]]\nname = \"p\"\npage = \"1MiB\"\nmembers = [\"array1\", \"array2\"]\n";
  if (faults) text += "[faults]\nenabled = true\n";
  auto parsed = group::parse_configuration(text, "sim.toml");
  if (!parsed) fmt::print(stderr, "{}\n", parsed.error().front());
  assert(parsed.has_value());
  return std::move(*parsed);
}

Task<Result<std::unique_ptr<nvram::Nvram>, std::string>> GroupLab::open_board(
    Executor* home, nvram::NvramOptions options) {
  const auto board = boards_.try_emplace(options.path, options.byte_count).first;
  options.boot_id = boot_id_;
  auto opened = co_await nvram::Nvram::open(*home, board->second, std::move(options));
  if (!opened.has_value()) co_return opened;
  memories_[board->first] = opened->get();
  if (on_store) (*opened)->observe_stores(on_store);
  co_return opened;
}

Task<std::string> GroupLab::start() {
  auto store = co_await metadata::open_simulated_store(home_, "metadata");
  if (!store.has_value()) co_return store.error();
  store_ = std::move(*store);
  configuration_.open_image = [this](Executor& home, nvram::NvramOptions options) {
    return open_board(&home, std::move(options));
  };
  auto started = co_await group::Group::start(configuration_, *store_);
  if (!started.has_value()) co_return started.error().text;
  group_ = std::move(*started);
  co_return std::string();
}

Task<void> GroupLab::stop() {
  if (group_ != nullptr) co_await group_->shutdown();
  group_.reset();
  memories_.clear();
  if (store_ != nullptr) co_await store_->close();
  store_.reset();
}

void GroupLab::set_battery(nvram::BatteryState state) {
  for (const auto& [path, memory] : memories_) memory->battery().set_state(state);
}

void GroupLab::fail_image() { boards_.at(std::string(kImage)).sync_error = Error::kHardware; }

// As when the partner loses its power.
void GroupLab::fail_mirror() { memories_.at(std::string(kMirror))->cut_power(); }

Task<std::string> GroupLab::check() {
  const auto pools = co_await group_->check_group();
  for (const group::PoolCheckInfo& pool : pools) {
    if (!pool.wrong.empty()) co_return "check: " + pool.wrong.front();
  }
  co_return std::string();
}

Task<std::string> GroupLab::find_leftovers() {
  const auto entries = co_await store_->list("", "", kMostEntries);
  if (!entries.has_value()) co_return "the metadata cannot be read";
  for (const auto& [key, value] : *entries) {
    for (const char* const kind :
         {"volume/", "target/", "snapshot/", "schedule/", "intent/", "clearing/", "making/"}) {
      const auto at = key.starts_with("member/") ? key.find('/', 7) + 1 : 0;
      if (key.compare(at, std::string_view(kind).size(), kind) == 0) co_return key + " is left";
    }
  }
  co_return std::string();
}

Task<std::string> GroupLab::check_empty() {
  std::string wrong = co_await find_leftovers();
  for (int i = 0; i < 600 && wrong.empty(); ++i) {
    const auto pool = co_await group_->show_pool("p");
    if (!pool.has_value()) co_return pool.error().message;
    if (pool->free_bytes == pool->size_bytes) co_return std::string();
    co_await home_.sleep_for(std::chrono::milliseconds(200));
  }
  co_return wrong.empty() ? "a page is left" : wrong;
}

Task<bool> GroupLab::left(std::string member) {
  for (int i = 0; i < 300; ++i) {
    const auto shown = co_await group_->show_member(member);
    if (shown.has_value() && shown->state == "present") co_return true;
    co_await home_.sleep_for(std::chrono::milliseconds(100));
  }
  co_return false;
}

// Disk --------------------------------------------------------------------------------------------

namespace {

constexpr int kMostLooks = 2000;
constexpr Duration kBetweenLooks = std::chrono::milliseconds(10);

}  // namespace

std::string target_of(const std::string& volume) { return group::default_target_name(volume); }

Disk::Disk(std::string target)
    : target_({.name = target,
               .session = {.endpoint = Endpoint::ipv4(0x7F000001, kPort),
                           .initiator_name = "iqn.2026-11.org.sandbay:host",
                           .target_name = target}}) {}

std::uint64_t Disk::byte_count() const {
  if (!target_.up() || target_.units().empty()) return 0;
  const Geometry& geometry = target_.units().front()->geometry();
  return geometry.block_count * geometry.block_bytes;
}

Task<std::string> Disk::connect(std::uint64_t byte_count) {
  target_.start();
  std::string wrong = co_await wait_for_size(byte_count);
  co_return wrong;
}

Task<std::string> Disk::wait_for_size(std::uint64_t wanted) {
  for (int i = 0; i < kMostLooks; ++i) {
    if (byte_count() == wanted) co_return std::string();
    co_await target_.home().sleep_for(kBetweenLooks);
  }
  co_return fmt::format("{} shows {} bytes instead of {}: {}", target_.name(), byte_count(), wanted,
                        target_.reason());
}

Task<void> Disk::disconnect() { co_await target_.stop(); }

}  // namespace sandbay::simtest
