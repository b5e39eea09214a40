// World: puts scheduler, disks, network and executors together and runs them.
#include "runtime/simulation.h"

#include <algorithm>
#include <cassert>
#include <list>

#include "runtime/simulated_disks.h"
#include "runtime/simulated_executor.h"
#include "runtime/simulated_network.h"

namespace sandbay::sim {

namespace {

class SimulatedWorld final : public World {
 public:
  explicit SimulatedWorld(WorldOptions options)
      : seeds_(options.seed),
        random_(seeds_.fork()),
        scheduler_(seeds_.fork()),
        disks_(scheduler_, seeds_.fork(), options.file_latency, options.files.get()),
        network_(scheduler_, seeds_.fork(), options.link) {
    assert(options.executors > 0);
    std::vector<SimulatedExecutor*> attached;
    for (unsigned i = 0; i < options.executors; ++i) {
      owned_.push_back(std::make_unique<SimulatedExecutor>(
          scheduler_, disks_, network_, i, seeds_.fork(), options.memory_limit_bytes));
      attached.push_back(owned_.back().get());
      executors_.push_back(owned_.back().get());
    }
    for (SimulatedExecutor* executor : attached) executor->set_peers(executors_);
    scheduler_.attach(std::move(attached));
  }
  ~SimulatedWorld() override {
    // Buffers may still be on their way home.
    run_for(Duration{0});
  }

  std::span<Executor* const> executors() const noexcept override { return executors_; }
  Random& random() noexcept override { return random_; }
  TimePoint now() const noexcept override { return scheduler_.now(); }

  bool run(std::function<Task<void>()> main, Duration limit) override;
  void run_for(Duration duration) override;
  std::uint64_t steps() const noexcept override { return scheduler_.steps(); }
  std::uint64_t trace_hash() const noexcept override { return scheduler_.trace_hash(); }

  void cut_power() override { disks_.cut_power(); }
  bool file_exists(const std::string& path) const override { return disks_.exists(path); }
  std::vector<std::byte> file_content(const std::string& path) const override {
    return disks_.content(path);
  }
  void set_file_content(const std::string& path, std::vector<std::byte> content) override {
    disks_.set_content(path, std::move(content));
  }
  std::shared_ptr<const FilesSnapshot> snapshot_files() const override { return disks_.snapshot(); }
  void observe_writes(std::function<void(const std::string& path)> observer) override {
    disks_.observe_writes(std::move(observer));
  }

  void set_wires(const Endpoint& server, Wires wires) override {
    network_.set_wires(server, wires);
  }
  void reset_streams(std::uint16_t port) override { network_.reset_streams(port); }
  std::size_t stream_count() const noexcept override { return network_.stream_count(); }
  void reset_stream(std::size_t index) override { network_.reset_stream(index); }
  void set_partitioned(bool partitioned) override { network_.set_partitioned(partitioned); }

 private:
  // A main function, whose captures its coroutine refers to until it ends.
  struct Main {
    std::function<Task<void>()> function;
    bool ended = false;
  };
  static Task<void> run_main(Main* main) {
    co_await main->function();
    main->ended = true;
  }

  Random seeds_;
  Random random_;
  Scheduler scheduler_;
  Disks disks_;
  Network network_;
  std::vector<std::unique_ptr<SimulatedExecutor>> owned_;
  std::vector<Executor*> executors_;
  std::list<Main> mains_;
};

bool SimulatedWorld::run(std::function<Task<void>()> main, Duration limit) {
  assert(Executor::current_or_null() == nullptr);
  const TimePoint horizon = now() + limit;
  std::erase_if(mains_, [](const Main& each) { return each.ended; });
  Main& started = mains_.emplace_back(Main{.function = std::move(main)});
  SimulatedExecutor::enter(executors_[0]);
  spawn(run_main(&started));
  SimulatedExecutor::enter(nullptr);
  scheduler_.start_run();
  while (!started.ended && scheduler_.step(horizon)) {
  }
  scheduler_.end_run();
  return started.ended;
}

void SimulatedWorld::run_for(Duration duration) {
  assert(Executor::current_or_null() == nullptr);
  const TimePoint horizon = now() + duration;
  scheduler_.start_run();
  while (scheduler_.step(horizon)) {
  }
  scheduler_.end_run();
  scheduler_.advance_to(horizon);
}

}  // namespace

std::unique_ptr<World> World::create(WorldOptions options) {
  return std::make_unique<SimulatedWorld>(std::move(options));
}

}  // namespace sandbay::sim
