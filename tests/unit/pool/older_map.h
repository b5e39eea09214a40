// A pool whose map is older than its stores: the entries that were listed while the log was held
// replace all later ones, as an import replaces them. The coroutines take pointers: their callers
// await them at once.
#pragma once

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/unit/pool/pool_rig.h"

namespace sandbay::pool {

inline RigOptions stamped_options() { return {.spare_bytes = StoreStamps::kBytes, .nvram = false}; }

inline Task<void> begin(Rig* rig) {
  const std::string wrong = co_await rig->start();
  REQUIRE(wrong == "");
}

inline Task<void> close_rig(Rig* rig) {
  const Error error = co_await rig->close();
  REQUIRE(error == Error::kNone);
}

inline Task<std::vector<metadata::Entry>> list_map(Rig* rig) {
  const Error held = co_await rig->pool->hold();
  REQUIRE(held == Error::kNone);
  auto entries = co_await rig->store->list("", "", std::numeric_limits<std::size_t>::max());
  REQUIRE(entries.has_value());
  rig->pool->release();
  co_return std::move(*entries);
}

inline Task<void> bring_back(Executor* home, std::vector<metadata::Entry> entries) {
  auto opened = co_await metadata::open_simulated_store(*home, "metadata");
  REQUIRE(opened.has_value());
  metadata::Batch batch;
  batch.erase_prefix("pool/");
  for (metadata::Entry& entry : entries) batch.put(std::move(entry.first), std::move(entry.second));
  const Error error = co_await (*opened)->commit(std::move(batch));
  REQUIRE(error == Error::kNone);
  co_await (*opened)->close();
}

// A volume of two pages, both written.
inline Task<BranchId> provision(Rig* rig) {
  const auto made = co_await rig->pool->create({.byte_count = 2 * kTestPageBytes}, {});
  REQUIRE(made.has_value());
  auto volume = rig->pool->attach(*made);
  Random random{1};
  const Error error = co_await write_cells(*volume, 0, 2 * kTestPageBytes / kCellBytes, 1, random);
  REQUIRE(error == Error::kNone);
  co_return *made;
}

inline Task<void> move_first_page(Rig* rig, BranchId branch) {
  const Place from = rig->pool->map().find(branch)->pages.at(0).place();
  const Error error =
      co_await rig->pool->move_page(branch, 0, static_cast<StoreIndex>(1 - from.store));
  REQUIRE(error == Error::kNone);
}

}  // namespace sandbay::pool
