// One family after the other, each with a sample for every pool, or for every set of one.
#include "mgmt/metrics_pools.h"

#include <fmt/core.h>

namespace sandbay::mgmt {

void add_pools(Text& text, const std::vector<group::PoolInfo>& pools) {
  if (pools.empty()) return;
  const auto each = [&](std::string_view name, std::string_view type, std::string_view help,
                        auto value) {
    text.family(name, type, help);
    for (const group::PoolInfo& pool : pools) {
      text.sample(fmt::format("pool=\"{}\"", escape(pool.name)), value(pool));
    }
  };
  const auto counter = [&](std::string_view name, std::string_view help,
                           std::uint64_t pool::PoolCounters::* member) {
    each(fmt::format("sandbay_pool_{}_total", name), "counter", help,
         [member](const group::PoolInfo& pool) { return pool.counters.*member; });
  };
  each("sandbay_pool_open", "gauge", "1 if the pool could be opened.",
       [](const auto& pool) { return pool.reason.empty() ? 1 : 0; });
  each("sandbay_pool_size_bytes", "gauge", "Size of the pool.",
       [](const auto& pool) { return pool.size_bytes; });
  each("sandbay_pool_free_bytes", "gauge", "Pages that nobody has.",
       [](const auto& pool) { return pool.free_bytes; });
  each("sandbay_pool_snapshot_reserve_bytes", "gauge", "Pages that keep something for snapshots.",
       [](const auto& pool) { return pool.snapshot_bytes; });
  each("sandbay_pool_provisioned_bytes", "gauge", "Sum of the sizes of its volumes.",
       [](const auto& pool) { return pool.provisioned_bytes; });
  using Counters = pool::PoolCounters;
  counter("pages_allocated", "Pages given to volumes.", &Counters::pages_allocated);
  counter("pages_freed", "Pages given back.", &Counters::pages_freed);
  counter("pages_moved", "Pages moved to other sets.", &Counters::pages_moved);
  counter("chunks_kept", "Chunks copied for snapshots.", &Counters::chunks_kept);
  counter("chunks_filled", "Chunks completed around smaller writes.", &Counters::chunks_filled);
  const auto each_store = [&](std::string_view name, std::string_view help, auto value) {
    text.family(name, "gauge", help);
    for (const group::PoolInfo& pool : pools) {
      for (const group::PoolStoreInfo& store : pool.stores) {
        text.sample(fmt::format("pool=\"{}\",member=\"{}\",set=\"{}\"", escape(pool.name),
                                escape(store.member), escape(store.set)),
                    value(store));
      }
    }
  };
  each_store("sandbay_pool_store_size_bytes", "What a RAID set gives to the pool.",
             [](const auto& store) { return store.size_bytes; });
  each_store("sandbay_pool_store_free_bytes", "Of it, pages that nobody has.",
             [](const auto& store) { return store.free_bytes; });
  each_store("sandbay_pool_store_serving", "1 if the RAID set serves.",
             [](const auto& store) { return store.reason.empty() ? 1 : 0; });
}

}  // namespace sandbay::mgmt
