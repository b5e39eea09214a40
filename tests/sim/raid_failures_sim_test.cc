// Goal: whichever drives fail, in whichever order, before, during and after writes and in the
// middle of a rebuild: a host reads what it wrote or an honest error, and the set survives exactly
// what its level survives. When the drives are back, everything acknowledged is there. Method:
// every subset of the drives of every shape, each in a world of its own that begins with the same
// filled set. What a level survives is counted by RaidLab's model. SANDBAY_LONG=1: 12 drives.
// SANDBAY_DRIVES=n: sets of n drives at most, for builds that are slow.
#include <catch2/catch.hpp>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <utility>

#include <fmt/core.h>

#include "raid_lab.h"
#include "runtime/simulation.h"

namespace sandbay::raidtest {
namespace {

using raid::Level;

enum class Phase : unsigned { kBefore, kDuring, kAfter, kRebuilding, kCount };
constexpr const char* kPhaseNames[] = {"before", "during", "after", "rebuilding"};

struct Case {
  LabShape shape;
  Phase phase = Phase::kBefore;
  std::vector<unsigned> order;  // Roles, as they fail.
  std::uint64_t seed = 0;
  LabState left;
  BlockModel model;
  std::string wrong;

  std::uint64_t mask() const {
    std::uint64_t roles = 0;
    for (const unsigned role : order) roles |= std::uint64_t{1} << role;
    return roles;
  }
};

struct Totals {
  std::uint64_t cases = 0;
  std::uint64_t survived = 0;
};
Totals totals;

std::vector<LabShape> shapes() {
  std::vector<LabShape> all = {
      {.level = Level::kJbod, .drives = 1},
      {.level = Level::kConcatenation, .drives = 3},
      {.level = Level::kRaid0, .drives = 4},
      {.level = Level::kRaid1, .drives = 2},
      {.level = Level::kRaid1, .drives = 3},
      {.level = Level::kRaid1, .drives = 4},
      {.level = Level::kRaid5, .drives = 3},
      {.level = Level::kRaid5, .drives = 5},
      {.level = Level::kRaid5, .drives = 8},
      {.level = Level::kRaid6, .drives = 4},
      // Its journal is soon full, and nothing is released when the set has failed.
      {.level = Level::kRaid5, .drives = 6, .journal_bytes = std::size_t{96} << 10},
      {.level = Level::kRaid6, .drives = 6},
      {.level = Level::kRaid6, .drives = 8},
      {.level = Level::kRaid10, .drives = 4},
      {.level = Level::kRaid10, .drives = 6},
      {.level = Level::kRaid10, .drives = 8, .groups = 2},
      {.level = Level::kRaid50, .drives = 6, .groups = 2},
      {.level = Level::kRaid50, .drives = 8, .groups = 2},
      {.level = Level::kRaid60, .drives = 8, .groups = 2},
  };
  const char* given = std::getenv("SANDBAY_LONG");
  if (given != nullptr && std::string(given) == "1") {
    all.push_back({.level = Level::kRaid5, .drives = 12});
    all.push_back({.level = Level::kRaid6, .drives = 12});
    all.push_back({.level = Level::kRaid10, .drives = 12});
    all.push_back({.level = Level::kRaid50, .drives = 12, .groups = 3});
    all.push_back({.level = Level::kRaid60, .drives = 12, .groups = 2});
  }
  if (const char* most = std::getenv("SANDBAY_DRIVES"); most != nullptr) {
    const unsigned long drives = std::strtoul(most, nullptr, 10);
    std::erase_if(all, [drives](const LabShape& shape) { return shape.drives > drives; });
    REQUIRE(!all.empty());
  }
  for (LabShape& shape : all) shape.strips = 6;
  return all;
}

// Runs `body` over a lab in a world of its own; what hangs stays until the process ends.
template <class Body>
std::string in_world(std::uint64_t seed, const LabShape& shape, LabState state, BlockModel model,
                     Body body) {
  auto world = sim::World::create({.seed = seed});
  auto lab =
      std::make_unique<RaidLab>(*world->executors()[0], shape, std::move(state), std::move(model));
  const bool ended = world->run([&] { return body(lab.get()); });
  if (ended) return {};
  static_cast<void>(lab.release());
  static_cast<void>(world.release());
  return "it hangs";
}

Task<void> fill(Case* filled, RaidLab* lab) {
  filled->wrong = co_await lab->format();
  if (filled->wrong.empty()) filled->wrong = co_await lab->boot();
  if (!filled->wrong.empty()) co_return;
  for (Lba lba = 0; lba < lab->model.block_count(); lba += 8) {
    const Error error = co_await lab->write({.first = lba, .block_count = 8}, false);
    if (error != Error::kNone) filled->wrong = "it cannot be filled";
  }
  co_await lab->load(6, 2);
  co_await lab->flush();
  co_await lab->stop();
  filled->left = lab->fork();
  filled->model = lab->model;
}

Task<void> fail_each(Case* tried, RaidLab* lab, std::size_t from) {
  for (std::size_t i = from; i < tried->order.size(); ++i) {
    const Error error = tried->seed % 2 == 0 ? Error::kHardware : Error::kNotReady;
    lab->devices[tried->order[i]]->fail_with(error);
    if (tried->phase == Phase::kDuring) {
      co_await lab->home.sleep_for(std::chrono::microseconds(lab->home.random().below(300)));
    } else {
      std::vector<std::byte> bytes;
      co_await lab->read_all(&bytes);
    }
  }
}

Task<void> load_beside(RaidLab* lab, bool* running, Condition* ended) {
  co_await lab->load(12, 3);
  *running = false;
  ended->notify_all();
}

Task<void> play(Case* tried, RaidLab* lab) {
  bool running = false;
  Condition ended;
  switch (tried->phase) {
    case Phase::kBefore:
      co_await fail_each(tried, lab, 0);
      co_await lab->load(6, 2);
      break;
    case Phase::kDuring:
      running = true;
      spawn(load_beside(lab, &running, &ended));
      co_await fail_each(tried, lab, 0);
      while (running) co_await ended.wait();
      break;
    case Phase::kAfter:
      co_await lab->load(6, 2);
      co_await fail_each(tried, lab, 0);
      break;
    case Phase::kRebuilding: {
      const unsigned first = tried->order[0];
      lab->devices[first]->fail_with(Error::kHardware);
      co_await lab->load(6, 2);
      if (lab->set_drives().drive(first) == nullptr) {
        lab->role_of[first] = -1;
        co_await lab->take_spare(first, lab->add_drive("spare"));
        lab->devices.back()->set_latency(std::chrono::microseconds(200));
      }
      co_await lab->home.sleep_for(std::chrono::microseconds(lab->home.random().below(2000)));
      co_await fail_each(tried, lab, 1);
      co_await lab->load(6, 2);
      break;
    }
    case Phase::kCount:
      break;
  }
}

// Strip by strip: right, or an error that says what it is.
Task<void> read_honestly(Case* tried, RaidLab* lab) {
  bool any_error = false;
  const std::uint64_t step = lab->shape.strip_blocks();
  for (Lba lba = 0; lba < lab->model.block_count(); lba += step) {
    const Error error = co_await lab->read({.first = lba, .block_count = step});
    if (error == Error::kNone) continue;
    any_error = true;
    const bool honest = lab->shape.redundancy() == 0 || error == Error::kNotReady ||
                        error == Error::kMediumError || lab->shape.mirrored();
    if (!honest) tried->wrong = fmt::format("a read ends with: {}", describe(error));
  }
  const bool survives = lab->shape.survives(tried->mask());
  const bool settled = tried->phase != Phase::kRebuilding;
  if (survives && any_error) tried->wrong = "it does not survive what it should";
  if (!survives && !any_error && settled) tried->wrong = "it survives what it cannot";
  totals.survived += survives;
}

Task<void> try_case(Case* tried, RaidLab* lab) {
  lab->errors_expected = !lab->shape.survives(tried->mask());
  tried->wrong = co_await lab->boot();
  if (!tried->wrong.empty()) co_return;
  for (const auto& device : lab->devices) device->set_latency(std::chrono::microseconds(50));
  co_await play(tried, lab);
  co_await read_honestly(tried, lab);
  for (const std::string& wrong : lab->wrong) tried->wrong += wrong + "; ";
  lab->errors_expected = true;
  tried->left = lab->fork();
  tried->model = lab->model;
  co_await lab->stop();
}

// All drives answer again. What was never recorded as lost is current, so the set starts.
Task<void> come_back(Case* tried, RaidLab* lab) {
  tried->wrong = co_await lab->boot();
  std::vector<std::byte> bytes;
  if (tried->wrong.empty()) {
    const Error error = co_await lab->read_all(&bytes);
    if (error != Error::kNone) tried->wrong = describe(error);
  }
  if (tried->wrong.empty()) tried->wrong = lab->model.check_after_crash(0, bytes);
  if (tried->wrong.empty() && lab->shape.parity()) tried->wrong = lab->check_members(bytes);
  if (!tried->wrong.empty()) tried->wrong = "when the drives are back: " + tried->wrong;
  lab->errors_expected = true;
  co_await lab->stop();
}

std::string run_case(Case tried) {
  ++totals.cases;
  const std::string problem = in_world(tried.seed, tried.shape, tried.left, tried.model,
                                       [&tried](RaidLab* lab) { return try_case(&tried, lab); });
  if (!problem.empty() || !tried.wrong.empty()) return problem + tried.wrong;
  tried.model.crash();
  const std::string later = in_world(tried.seed, tried.shape, tried.left, tried.model,
                                     [&tried](RaidLab* lab) { return come_back(&tried, lab); });
  return later + tried.wrong;
}

// The orders in which these roles fail: both of a pair, else from the lowest or the highest.
std::vector<std::vector<unsigned>> orders_of(std::uint64_t mask, std::uint64_t seed) {
  std::vector<unsigned> roles;
  for (; mask != 0; mask &= mask - 1) {
    roles.push_back(static_cast<unsigned>(std::countr_zero(mask)));
  }
  std::vector<unsigned> backwards(roles.rbegin(), roles.rend());
  if (roles.size() == 2) return {roles, backwards};
  return {seed % 2 == 0 ? roles : backwards};
}

std::uint64_t try_every_subset(const LabShape& shape) {
  Case filled{.shape = shape, .seed = 1, .model = new_model(shape)};
  const std::string problem = in_world(1, shape, blank_state(shape), new_model(shape),
                                       [&filled](RaidLab* lab) { return fill(&filled, lab); });
  UNSCOPED_INFO(problem << filled.wrong);
  REQUIRE((problem.empty() && filled.wrong.empty()));
  std::uint64_t failures = 0;
  std::uint64_t seed = 1;
  const std::uint64_t subsets = std::uint64_t{1} << shape.drives;
  for (std::uint64_t mask = 0; mask < subsets; ++mask) {
    for (unsigned phase = 0; phase < static_cast<unsigned>(Phase::kCount); ++phase) {
      const bool rebuilds = static_cast<Phase>(phase) == Phase::kRebuilding;
      if (rebuilds && (mask == 0 || shape.redundancy() == 0)) continue;
      // Every subset all the same, and every phase with every second one.
      if (kSanitized && (static_cast<unsigned>(std::popcount(mask)) + mask + phase) % 2 != 0) {
        continue;
      }
      for (const std::vector<unsigned>& order : orders_of(mask, ++seed)) {
        Case tried{.shape = shape,
                   .phase = static_cast<Phase>(phase),
                   .order = order,
                   .seed = ++seed,
                   .left = filled.left,
                   .model = filled.model};
        const std::string wrong = run_case(std::move(tried));
        if (wrong.empty()) continue;
        if (++failures > 5) continue;
        fmt::print("{}, roles {:x}, {}, seed {}: {}\n", shape.name(), mask, kPhaseNames[phase],
                   seed, wrong);
      }
    }
  }
  return failures;
}

// ---- latent errors in a rebuild ---------------------------------------------------------------

struct Latent {
  LabShape shape;
  std::vector<bool> lost;  // By block.
  LabState left;
  BlockModel model;
  std::string wrong;
};

// One unreadable block in every stripe, on any of the drives that are left.
void plant(Latent* latent, RaidLab* lab, unsigned lost_role) {
  const LabShape& shape = latent->shape;
  latent->lost.assign(shape.block_count(), false);
  for (std::uint64_t stripe = 0; stripe < shape.stripe_count(); ++stripe) {
    auto bad = static_cast<unsigned>(lab->home.random().below(shape.width()));
    if (shape.role(stripe, bad) == lost_role) bad = (bad + 1) % shape.width();
    const std::uint64_t row = lab->home.random().below(shape.strip_blocks());
    const std::uint64_t at = stripe / shape.group_count() * shape.strip_blocks() + row;
    lab->devices[shape.role(stripe, bad)]->make_unreadable(
        shape.data_offset_bytes() / kModelBlockBytes + at);
    for (unsigned member = 0; member < shape.data_chunks(); ++member) {
      const bool gone = shape.role(stripe, member) == lost_role || member == bad;
      if (!gone || shape.redundancy() > 1) continue;
      if (stripe % shape.group_count() != lost_role / shape.width()) continue;
      latent->lost[(stripe * shape.data_chunks() + member) * shape.strip_blocks() + row] = true;
    }
  }
}

// Block by block, and a stripe at a time: errors stand exactly where something is lost.
Task<void> check_lost(Latent* latent, RaidLab* lab, const char* when) {
  const LabShape& shape = latent->shape;
  for (const std::uint64_t step : {std::uint64_t{1}, shape.strip_blocks() * shape.data_chunks()}) {
    for (Lba lba = 0; lba < shape.block_count(); lba += step) {
      Lba first_lost = lba;
      while (first_lost < lba + step && !latent->lost[first_lost]) ++first_lost;
      Request request;
      request.extent = {.first = lba, .block_count = step};
      request.data = co_await lab->home.buffers().allocate(step * kModelBlockBytes);
      const std::uint64_t begun = lab->model.begin_read();
      const Completion done = co_await lab->set->submit(std::move(request));
      std::vector<std::byte> bytes(done.data.byte_count());
      done.data.copy_to(bytes);
      if (first_lost == lba + step) {
        const std::string wrong = lab->model.end_read(lba, bytes, begun);
        if (done.error != Error::kNone || !wrong.empty()) {
          latent->wrong =
              fmt::format("{}: block {}: {}; {}", when, lba, describe(done.error), wrong);
        }
        continue;
      }
      lab->model.fail_read();
      if (done.error != Error::kMediumError || done.first_bad_lba != first_lost) {
        latent->wrong =
            fmt::format("{}: blocks from {}: {} at {} instead of a medium error at {}", when, lba,
                        describe(done.error), done.first_bad_lba, first_lost);
      }
    }
  }
}

Task<void> rebuild_over_errors(Latent* latent, RaidLab* lab) {
  latent->wrong = co_await lab->boot();
  if (!latent->wrong.empty()) co_return;
  const unsigned role = lab->shape.drives / 2;
  lab->devices[role]->fail_with(Error::kHardware);
  while (lab->set_drives().drive(role) != nullptr) {
    co_await lab->write({.first = 0, .block_count = lab->model.block_count()}, false);
  }
  co_await lab->flush();
  plant(latent, lab, role);
  lab->role_of[role] = -1;
  co_await lab->take_spare(role, lab->add_drive("spare"));
  co_await lab->wait_idle();
  if (!lab->set_drives().optimal()) latent->wrong = "it is not whole after the rebuild";
  co_await check_lost(latent, lab, "after the rebuild");
  const bool any = std::ranges::find(latent->lost, true) != latent->lost.end();
  if (any == lab->set_drives().lost().empty()) latent->wrong = "the list of lost blocks is wrong";
  for (const std::string& wrong : lab->wrong) latent->wrong += wrong + "; ";
  latent->left = lab->fork();
  latent->model = lab->model;
  co_await lab->stop();
}

Task<void> cure(Latent* latent, RaidLab* lab) {
  latent->wrong = co_await lab->boot();
  if (!latent->wrong.empty()) co_return;
  co_await check_lost(latent, lab, "after a restart");
  for (Lba lba = 0; lba < latent->lost.size(); ++lba) {
    if (!latent->lost[lba]) continue;
    const Error error = co_await lab->write({.first = lba, .block_count = 1}, false);
    if (error != Error::kNone) latent->wrong = "a lost block cannot be rewritten";
  }
  latent->lost.assign(latent->lost.size(), false);
  co_await check_lost(latent, lab, "after they were rewritten");
  if (!lab->set_drives().lost().empty()) latent->wrong = "rewritten blocks are still called lost";
  latent->left = lab->fork();
  latent->model = lab->model;
  co_await lab->stop();
}

Task<void> look_again(Latent* latent, RaidLab* lab) {
  latent->wrong = co_await lab->boot();
  if (!latent->wrong.empty()) co_return;
  co_await check_lost(latent, lab, "after another restart");
  std::vector<std::byte> bytes;
  const Error error = co_await lab->read_all(&bytes);
  if (error != Error::kNone) latent->wrong = "it cannot be read";
  if (latent->wrong.empty()) latent->wrong = lab->check_members(bytes);
  co_await lab->stop();
}

void rebuild_with_latent_errors(const LabShape& shape, std::uint64_t seed) {
  CAPTURE(shape.name(), seed);
  Case filled{.shape = shape, .seed = seed, .model = new_model(shape)};
  std::string problem = in_world(seed, shape, blank_state(shape), new_model(shape),
                                 [&filled](RaidLab* lab) { return fill(&filled, lab); });
  REQUIRE(problem + filled.wrong == "");
  Latent latent{.shape = shape, .left = filled.left, .model = filled.model};
  for (const auto step : {&rebuild_over_errors, &cure, &look_again}) {
    problem = in_world(seed, shape, latent.left, latent.model,
                       [&latent, step](RaidLab* lab) { return step(&latent, lab); });
    REQUIRE(problem + latent.wrong == "");
    latent.model.crash();
  }
}

}  // namespace

TEST_CASE("every subset of failed drives, in every phase, gives right bytes or an honest error") {
  std::uint64_t failures = 0;
  for (const LabShape& shape : shapes()) failures += try_every_subset(shape);
  fmt::print("sim-raid-failures: {} cases, of which {} are survived\n", totals.cases,
             totals.survived);
  CHECK(failures == 0);
}

TEST_CASE("a rebuild with a latent error in every stripe loses exactly what is beyond redundancy") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    rebuild_with_latent_errors({.level = Level::kRaid5, .drives = 5}, seed);
    rebuild_with_latent_errors({.level = Level::kRaid6, .drives = 6}, seed);
    rebuild_with_latent_errors({.level = Level::kRaid50, .drives = 6, .groups = 2}, seed);
    rebuild_with_latent_errors({.level = Level::kRaid60, .drives = 8, .groups = 2}, seed);
  }
}

}  // namespace sandbay::raidtest
