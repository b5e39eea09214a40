// A cache over NVRAM in a world: boards, the write memory over them, and the cache. Every coroutine
// here is awaited by its caller at once.
#pragma once

#include <memory>
#include <utility>

#include "cache_runs.h"
#include "nvram/simulated_board.h"

namespace sandbay::cache {

struct Controller {
  std::unique_ptr<nvram::Nvram> nvram;
  std::unique_ptr<nvram::Nvram> mirror;
  std::unique_ptr<WriteMemory> memory;
  std::unique_ptr<Cache> cache;
};

struct ControllerOptions {
  nvram::SimulatedBoard* mirror = nullptr;
  bool non_volatile = true;
  nvram::Durability durability = nvram::Durability::kProcess;
  CacheOptions cache = quiet();
  std::string boot_id = "one";
};

inline Task<std::unique_ptr<nvram::Nvram>> open_board(Executor& home, nvram::SimulatedBoard& board,
                                                      std::string path, ControllerOptions options) {
  auto nvram = co_await nvram::Nvram::open(home, board,
                                           {.path = std::move(path),
                                            .durability = options.durability,
                                            .boot_id = options.boot_id,
                                            .power_loss_only_emulated = options.non_volatile});
  REQUIRE(nvram.has_value());
  co_return std::move(*nvram);
}

inline Task<Controller> start(Executor& home, nvram::SimulatedBoard& board,
                              ControllerOptions options) {
  Controller controller;
  controller.nvram = co_await open_board(home, board, "board", options);
  if (options.mirror != nullptr) {
    controller.mirror = co_await open_board(home, *options.mirror, "mirror", options);
  }
  auto memory = co_await WriteMemory::open(
      controller.nvram.get(), controller.mirror.get(),
      {.data_bytes = 4 * kMiB, .log_bytes = 256 * 1024, .slab_bytes = 256 * 1024});
  REQUIRE(memory.has_value());
  controller.memory = std::move(*memory);
  WriteRecovery recovery = controller.memory->recover();
  REQUIRE(recovery.lost.empty());
  const Error error = co_await controller.memory->accept();
  REQUIRE(error == Error::kNone);
  controller.cache = std::make_unique<Cache>(home, options.cache, controller.memory.get());
  controller.cache->adopt(std::move(recovery.writes));
  co_return controller;
}

inline Task<Controller> start(Executor& home, nvram::SimulatedBoard& board,
                              bool non_volatile = true) {
  return start(home, board, ControllerOptions{.non_volatile = non_volatile});
}

// What is dirty stays in the NVRAM.
inline Task<void> stop(Controller& controller) {
  co_await controller.cache->stop();
  controller.cache.reset();
  co_await controller.memory->stop();
  controller.memory.reset();
  controller.mirror.reset();
  controller.nvram.reset();
}

inline Task<void> close(Controller& controller) {
  const Error error = co_await controller.cache->close();
  REQUIRE(error == Error::kNone);
  REQUIRE(controller.memory->live_writes() == 0);
  co_await stop(controller);
}

}  // namespace sandbay::cache
