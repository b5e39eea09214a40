// Opening, checking and ending a pool in a world.
#include "pool_lab.h"

#include <fmt/core.h>

#include <utility>

#include "block/file_device.h"
#include "block/layer.h"
#include "pool/check.h"

namespace sandbay::simtest {

namespace {

// Small caches and early checkpoints: everything happens often.
pool::PoolOptions lab_options() {
  pool::PoolOptions options;
  options.map = {.prefix = "pool/1/",
                 .page_chunks = kLabPageChunks,
                 .chunk_map_bytes = 4096,
                 .kept_bytes = 4096,
                 .slot_map_bytes = 2048};
  options.log.store_groups = 8;
  options.log.nvram_percent = 5;
  options.copy_bytes = std::size_t{16} << 20;
  return options;
}

// Now and then a request fails or is late.
class FaultyUnit final : public Layer {
 public:
  FaultyUnit(BlockDevice& below, const UnitFaults& faults, Random& chances)
      : Layer(below), faults_(faults), chances_(chances) {}

  Task<Completion> submit(Request request) override {
    if (faults_.errors == 0 && faults_.delays == 0) return Layer::submit(std::move(request));
    return submit_or_fail(std::move(request));
  }

 private:
  Task<Completion> submit_or_fail(Request request) {
    if (chances_.chance(faults_.delays)) {
      co_await home().sleep_for(std::chrono::milliseconds(chances_.below(300)));
    }
    if (chances_.chance(faults_.errors)) {
      const Error error = chances_.chance(0.5) ? Error::kNotReady : Error::kMediumError;
      co_return Completion{.error = error, .data = std::move(request.data)};
    }
    co_return co_await Layer::submit(std::move(request));
  }

  const UnitFaults& faults_;
  Random& chances_;
};

}  // namespace

Task<std::string> PoolLab::open_board() {
  auto memory = co_await nvram::Nvram::open(
      home_, *board_,
      {.path = "nvram", .durability = nvram::Durability::kHost, .boot_id = boot_id_});
  if (!memory.has_value()) co_return memory.error();
  memory_ = std::move(*memory);
  auto region = co_await memory_->claim("map", pool::MapLog::kLeastRegionBytes);
  if (!region.has_value()) co_return region.error();
  region_ = std::move(*region);
  co_return std::string();
}

Task<std::string> PoolLab::open_unit(pool::StoreIndex member) {
  if (member >= units_.size()) {
    units_.resize(member + 1U);
    files_.resize(member + 1U);
  }
  if (units_[member] != nullptr) co_return std::string();
  auto opened = co_await FileDevice::open(home_, {.path = fmt::format("unit{}", member),
                                                  .create = true,
                                                  .byte_count = kLabMemberPages * kLabPageBytes});
  if (!opened.has_value()) co_return opened.error();
  files_[member] = std::move(*opened);
  units_[member] = std::make_unique<FaultyUnit>(*files_[member], faults_, chances_);
  co_return std::string();
}

pool::StoreConfig PoolLab::config_of(pool::StoreIndex member, pool::StoreState state) const {
  pool::StoreConfig config{
      .record = {.index = member, .page_count = kLabMemberPages, .member = member, .state = state},
      .device = units_[member].get()};
  config.record.uuid[0] = static_cast<std::uint8_t>(member + 1);
  return config;
}

Task<std::string> PoolLab::start(std::vector<pool::StoreIndex> members) {
  auto store = co_await metadata::open_simulated_store(home_, "metadata");
  if (!store.has_value()) co_return store.error();
  store_ = std::move(*store);
  if (board_ != nullptr) {
    std::string wrong = co_await open_board();
    if (!wrong.empty()) co_return wrong;
  }
  std::vector<pool::StoreConfig> configs;
  for (const pool::StoreIndex member : members) {
    std::string wrong = co_await open_unit(member);
    if (!wrong.empty()) co_return wrong;
    configs.push_back(config_of(member, pool::StoreState::kActive));
  }
  auto opened =
      co_await pool::Pool::open(home_, *store_, region_.get(), lab_options(), std::move(configs));
  if (!opened.has_value()) co_return opened.error();
  pool_ = std::move(*opened);
  co_return std::string();
}

Task<std::string> PoolLab::check() {
  const Error stored = co_await pool_->log().checkpoint();
  if (stored != Error::kNone) co_return fmt::format("checkpoint: {}", describe(stored));
  const pool::CheckReport report = co_await pool::check_map(&pool_->map());
  if (!report.wrong.empty()) co_return "check: " + report.wrong.front();
  const pool::PoolSpace space = pool_->space();
  const std::uint64_t owned = space.pages - space.free_pages;
  if (owned == report.pages + report.reserve_pages) co_return std::string();
  co_return fmt::format("{} pages are owned; {} by branches and {} by what is kept", owned,
                        report.pages, report.reserve_pages);
}

Task<std::string> PoolLab::sweep_all() {
  while (pool_->needs_sweep()) {
    const auto more = co_await pool_->sweep(7);
    if (!more.has_value()) co_return fmt::format("sweep: {}", describe(more.error()));
  }
  co_return std::string();
}

Task<void> PoolLab::stop() {
  if (pool_ != nullptr) co_await pool_->stop();
  pool_.reset();
  region_.reset();
  memory_.reset();
  if (store_ != nullptr) co_await store_->close();
  store_.reset();
}

}  // namespace sandbay::simtest
