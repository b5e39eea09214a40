// Persistent reservations against a model written from the tables and lists of SPC-4 clause 5.12
// and SBC-3 clause 4.15, and what hosts do with them.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/core.h>
#include <rapidcheck.h>
#include <catch2/catch.hpp>

#include "fake_transport.h"
#include "scsi/reservation_lists.h"

namespace sandbay::testing::reservations_test {
namespace {

using scsi::Additional;
using scsi::SenseKey;
using scsi::Status;

enum Action : unsigned {
  kRegister,
  kReserve,
  kRelease,
  kClear,
  kPreempt,
  kPreemptAndAbort,
  kRegisterAndIgnore,
  kMove
};

// Initiator port and relative target port.
using Nexus = std::pair<std::string, unsigned>;

// How a command ended: a status, and with CHECK CONDITION the additional sense code.
struct Result {
  Status status = Status::kGood;
  unsigned code = 0;
  auto operator<=>(const Result&) const = default;
};
constexpr Result kConflict{Status::kReservationConflict};
Result refusal(Additional code) { return {Status::kCheckCondition, static_cast<unsigned>(code)}; }

struct ReserveOut {
  unsigned action = kRegister;
  unsigned type = 0;
  std::uint64_t key = 0;
  std::uint64_t action_key = 0;
  bool all_ports = false;
  bool keep = false;
  bool unregister = false;
  std::vector<std::string> listed;  // SPEC_I_PT; of kMove the one.
  unsigned to_port = 0;
  bool specifies() const { return action != kMove && !listed.empty(); }
};

// The model. -------------------------------------------------------------------------------------

bool is_all(unsigned type) { return type == 7 || type == 8; }
bool is_for_registrants(unsigned type) { return type >= 5; }
bool is_type(unsigned type) { return type == 1 || type == 3 || (type >= 5 && type <= 8); }

struct Model {
  struct Registration {
    Nexus nexus;
    std::uint64_t key;
  };
  std::vector<Registration> registered;
  unsigned type = 0;
  Nexus holder;
  bool kept = false;
  unsigned generation = 0;
  std::map<Nexus, std::set<unsigned>> attentions;  // By nexus that is logged in.

  const Registration* find(const Nexus& nexus) const {
    for (const Registration& each : registered) {
      if (each.nexus == nexus) return &each;
    }
    return nullptr;
  }
  bool holds(const Nexus& nexus) const {
    return type != 0 && (is_all(type) ? find(nexus) != nullptr : holder == nexus);
  }
  void attend(const Nexus& nexus, unsigned code) { attentions[nexus].insert(code); }
  void attend_others(const Nexus& caller, unsigned code) {
    for (const Registration& each : registered) {
      if (each.nexus != caller) attend(each.nexus, code);
    }
  }
  void drop(const Nexus& nexus) {
    std::erase_if(registered, [&](const Registration& each) { return each.nexus == nexus; });
  }
  void put(const Nexus& nexus, std::uint64_t key) {
    drop(nexus);
    registered.push_back({nexus, key});
  }

  // It unregisters, and what it held alone ends.
  void leave(const Nexus& nexus, const Nexus& caller) {
    const bool held = holds(nexus);
    drop(nexus);
    if (!held || (is_all(type) && !registered.empty())) return;
    if (is_for_registrants(type)) attend_others(caller, 0x2A04);
    type = 0;
  }

  Result enrol(const Nexus& caller, const ReserveOut& out) {
    const Registration* own = find(caller);
    if (out.action == kRegister) {
      if (own == nullptr && out.key != 0) return kConflict;
      if (own != nullptr && out.key != own->key) return kConflict;
    }
    if (out.specifies() && (own != nullptr || out.action == kRegisterAndIgnore)) {
      return refusal(Additional::kInvalidFieldInParameterList);
    }
    if (own == nullptr && out.action_key == 0) return {};
    // ALL_TG_PT: as if it came through each port, where a wrong key changes nothing.
    for (unsigned port = 1; port <= 2; ++port) {
      const Nexus nexus{caller.first, port};
      const Registration* there = find(nexus);
      if (nexus != caller) {
        if (!out.all_ports) continue;
        const std::uint64_t key = there == nullptr ? 0 : there->key;
        if (out.action == kRegister && out.key != key) continue;
      }
      if (out.action_key == 0) {
        if (there != nullptr) leave(nexus, caller);
        continue;
      }
      put(nexus, out.action_key);
      for (const std::string& other : out.listed) {
        if (find({other, port}) == nullptr) put({other, port}, out.action_key);
      }
    }
    kept = out.keep;
    ++generation;
    return {};
  }

  Result preempt(const Nexus& caller, const ReserveOut& out) {
    const std::uint64_t victim = out.action_key;
    if (victim == 0 && !is_all(type)) return refusal(Additional::kInvalidFieldInParameterList);
    const bool by_holder = type != 0 && !is_all(type) && find(holder)->key == victim;
    const bool takes_over = by_holder || (is_all(type) && victim == 0);
    if (takes_over && !is_type(out.type)) return refusal(Additional::kInvalidFieldInCdb);
    std::vector<Nexus> lost;
    bool named = false;
    for (const Registration& each : registered) {
      if (victim != 0 && each.key != victim) continue;
      named = true;
      if (each.nexus == caller && (takes_over || is_all(type))) continue;
      lost.push_back(each.nexus);
    }
    if (!named) return kConflict;
    for (const Nexus& nexus : lost) {
      drop(nexus);
      if (nexus != caller) attend(nexus, 0x2A05);
    }
    if (takes_over) {
      if (type != out.type) attend_others(caller, 0x2A04);
      type = out.type;
      holder = caller;
    }
    ++generation;
    return {};
  }

  Result move(const Nexus& caller, const ReserveOut& out) {
    if (type == 0) return refusal(Additional::kInvalidFieldInCdb);
    if (is_all(type) || holder != caller) return kConflict;
    const Nexus to{out.listed.at(0), out.to_port};
    if (out.action_key == 0 || to.second < 1 || to.second > 2 || to.first == caller.first) {
      return refusal(Additional::kInvalidFieldInParameterList);
    }
    put(to, out.action_key);
    holder = to;
    if (out.unregister) drop(caller);
    kept = out.keep;
    ++generation;
    return {};
  }

  Result reserve_out(const Nexus& caller, const ReserveOut& out) {
    if (out.action == kRegister || out.action == kRegisterAndIgnore) return enrol(caller, out);
    const Registration* own = find(caller);
    if (own == nullptr || own->key != out.key) return kConflict;
    switch (out.action) {
      case kReserve:
        if (!is_type(out.type)) return refusal(Additional::kInvalidFieldInCdb);
        if (type != 0 && (!holds(caller) || type != out.type)) return kConflict;
        type = out.type;
        if (!is_all(type)) holder = caller;
        return {};
      case kRelease:
        if (!holds(caller)) return {};
        if (type != out.type) return refusal(Additional::kInvalidReleaseOfPersistentReservation);
        if (is_for_registrants(type)) attend_others(caller, 0x2A04);
        type = 0;
        return {};
      case kClear:
        attend_others(caller, 0x2A03);
        registered.clear();
        type = 0;
        ++generation;
        return {};
      case kMove:
        return move(caller, out);
      default:
        return preempt(caller, out);
    }
  }

  // A restart leaves what is kept.
  void restart() {
    generation = 0;
    attentions.clear();
    if (kept && !registered.empty()) return;
    registered.clear();
    type = 0;
    kept = false;
  }
};

// Commands by what SPC-4 and SBC-3 say of them, A for allowed and C for conflict, under: Write
// Exclusive, Exclusive Access; for registrants, from a registered nexus; from another, Write
// Exclusive, Exclusive Access.
struct Probe {
  std::array<std::byte, 16> cdb;
  const char* columns;
};
const std::array kProbes = {
    Probe{cdb_of({0x00}), "AAAAA"},                                // TEST UNIT READY
    Probe{cdb_of({0x03, 0, 0, 0, 18}), "AAAAA"},                   // REQUEST SENSE
    Probe{cdb_of({0x12, 0, 0, 0, 36}), "AAAAA"},                   // INQUIRY
    Probe{cdb_of({0x1A, 0, 0x3F, 0, 192}), "ACAAC"},               // MODE SENSE
    Probe{cdb_of({0x15, 0x10, 0, 0, 0}), "CCACC"},                 // MODE SELECT
    Probe{cdb_of({0x1B, 0, 0, 0, 1}), "AAAAA"},                    // START STOP UNIT, start
    Probe{cdb_of({0x1B, 0, 0, 0, 0x10}), "CCACC"},                 // with a power condition
    Probe{cdb_of({0x1E}), "AAAAA"},                                // ALLOW MEDIUM REMOVAL
    Probe{cdb_of({0x1E, 0, 0, 0, 1}), "CCACC"},                    // PREVENT
    Probe{cdb_of({0x25}), "AAAAA"},                                // READ CAPACITY(10)
    Probe{cdb_10(0x28, 0, 1), "ACAAC"},                            // READ(10)
    Probe{cdb_10(0x2A, 0, 0), "CCACC"},                            // WRITE(10)
    Probe{cdb_10(0x2F, 0, 1), "ACAAC"},                            // VERIFY(10)
    Probe{cdb_10(0x34, 0, 1), "ACAAC"},                            // PRE-FETCH(10)
    Probe{cdb_10(0x35, 0, 1), "CCACC"},                            // SYNCHRONIZE CACHE(10)
    Probe{cdb_of({0x42}), "CCACC"},                                // UNMAP
    Probe{cdb_of({0x5E, 0, 0, 0, 0, 0, 0, 0, 8}), "AAAAA"},        // PERSISTENT RESERVE IN
    Probe{cdb_16(0x8A, 0, 0), "CCACC"},                            // WRITE(16)
    Probe{cdb_16(0x9E, 0, 32, 0x10), "AAAAA"},                     // READ CAPACITY(16)
    Probe{cdb_16(0x9E, 0, 32, 0x12), "ACAAC"},                     // GET LBA STATUS
    Probe{cdb_12(0xA0, 0, 256), "AAAAA"},                          // REPORT LUNS
    Probe{cdb_of({0xA3, 0x0D, 0, 0, 0, 0, 0, 0, 0, 4}), "ACAAC"},  // REPORT SUPPORTED TMFS
};

bool is_allowed(const Model& model, const Nexus& nexus, const char* columns) {
  if (model.type == 0 || model.holds(nexus)) return true;
  const bool exclusive_access = model.type == 3 || model.type == 6 || model.type == 8;
  if (!is_for_registrants(model.type)) return columns[exclusive_access ? 1 : 0] == 'A';
  if (model.find(nexus) != nullptr) return columns[2] == 'A';
  return columns[exclusive_access ? 4 : 3] == 'A';
}

// The unit. --------------------------------------------------------------------------------------

void put_bytes(Bytes& bytes, std::vector<std::byte> more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

Bytes list_of(const ReserveOut& out) {
  Bytes list(24);
  put_big_endian(std::span(list), 0, out.key);
  put_big_endian(std::span(list), 8, out.action_key);
  if (out.action == kMove) {
    const auto id = scsi::encode_transport_id(out.listed.at(0));
    list[17] = static_cast<std::byte>((out.unregister ? 2U : 0U) | (out.keep ? 1U : 0U));
    put_big_endian(std::span(list), 18, static_cast<std::uint16_t>(out.to_port));
    put_big_endian(std::span(list), 20, static_cast<std::uint32_t>(id.size()));
    put_bytes(list, id);
    return list;
  }
  list[20] = static_cast<std::byte>((out.specifies() ? 8U : 0U) | (out.all_ports ? 4U : 0U) |
                                    (out.keep ? 1U : 0U));
  if (!out.specifies()) return list;
  Bytes ids;
  for (const std::string& each : out.listed) put_bytes(ids, scsi::encode_transport_id(each));
  list.resize(28);
  put_big_endian(std::span(list), 24, static_cast<std::uint32_t>(ids.size()));
  put_bytes(list, ids);
  return list;
}

std::array<std::byte, 16> cdb_for(const ReserveOut& out, std::size_t byte_count) {
  auto cdb = cdb_of({0x5F, out.action, out.type});
  put_big_endian(std::span<std::byte>(cdb), 5, static_cast<std::uint32_t>(byte_count));
  return cdb;
}

// A unit with two ports, its store, and one login for each nexus.
class Lab {
 public:
  explicit Lab(Executor& home) : devices(home, {.byte_count = kBenchBlocks * 512}) {}

  Task<void> start(std::vector<Nexus> names) {
    unit_ = std::make_unique<ServedUnit>(devices.device,
                                         scsi::LogicalUnitOptions{.target_ports = {1, 2}});
    unit_->unit.restore(shelf, shelf.kept);
    const Error error = co_await unit_->router.add(0, &unit_->unit);
    REQUIRE(error == Error::kNone);
    for (const Nexus& name : names) co_await log_in(name);
  }
  Task<void> log_in(Nexus name) {
    auto made = router().attach({.initiator_port = name.first,
                                 .target_port = "iqn.2026-11.org.sandbay:test,t,0x0001",
                                 .relative_target_port = static_cast<std::uint16_t>(name.second)});
    const Reply reply = co_await testing::send(router(), *made, {});
    REQUIRE(reply.attention(Additional::kPowerOnResetOrBusDeviceReset));
    nexuses[name] = std::move(made);
  }
  Task<void> log_out(Nexus name) {
    co_await router().detach(*nexuses.at(name));
    nexuses.erase(name);
  }
  Task<void> stop() {
    for (auto& [name, nexus] : nexuses) co_await router().detach(*nexus);
    nexuses.clear();
    co_await unit_->stop();
    unit_.reset();
  }

  Task<Reply> send(Nexus from, std::array<std::byte, 16> cdb, Bytes out = {}) {
    return testing::send(router(), *nexuses.at(from), cdb, {.out = std::move(out)});
  }
  Task<Result> reserve_out(Nexus from, ReserveOut out) {
    const Bytes list = list_of(out);
    const Reply reply = co_await send(from, cdb_for(out, list.size()), list);
    const bool reached = reply.status == Status::kGood || reply.key() == SenseKey::kIllegalRequest;
    if (reached && reply.data_out_bytes != list.size()) FAIL("it did not use the whole list");
    co_return result_of(reply);
  }
  static Result result_of(const Reply& reply) { return {reply.status, reply.additional()}; }
  Task<Bytes> reserve_in(Nexus from, unsigned action) {
    const Reply reply = co_await send(from, cdb_of({0x5E, action, 0, 0, 0, 0, 0, 0xFF, 0xFF}));
    REQUIRE(reply.good());
    co_return reply.data;
  }
  scsi::TaskRouter& router() { return unit_->router; }
  scsi::LogicalUnit& unit() { return unit_->unit; }

  Shelf shelf;
  std::map<Nexus, std::unique_ptr<scsi::Nexus>> nexuses;

  BenchDevices devices;

 private:
  std::unique_ptr<ServedUnit> unit_;
};

void in_lab(Task<void> (*body)(Lab& lab)) {
  struct Run {
    static Task<void> go(Executor& home, Task<void> (*body)(Lab&)) {
      Lab lab(home);
      co_await body(lab);
      co_await lab.stop();
    }
  };
  run_in_world(1, [&](Executor& home) { return Run::go(home, body); });
}

const std::string kA1 = "iqn.2026-11.org.example:a,i,0x00023d000001";
const std::string kA2 = "iqn.2026-11.org.example:a,i,0x00023d000002";
const std::string kB1 = "iqn.2026-11.org.example:b,i,0x00023d000001";
const std::vector<Nexus> kNexuses = {{kA1, 1}, {kA1, 2}, {kA2, 1}, {kA2, 2}, {kB1, 1}, {kB1, 2}};

// READ FULL STATUS, taken apart again by hand.
using Row = std::tuple<Nexus, std::uint64_t, unsigned>;  // Key, and type where it holds.
std::set<Row> rows_of(const Bytes& data) {
  std::set<Row> rows;
  REQUIRE(big_endian<std::uint32_t>(data, 4) == data.size() - 8);
  for (std::size_t at = 8; at < data.size();) {
    const auto head = std::span(data).subspan(at);
    const std::size_t length = big_endian<std::uint32_t>(head, 20);
    const bool holds = (std::to_integer<unsigned>(head[12]) & 1U) != 0;
    std::string name;
    for (std::size_t i = 28; i < 24 + length && head[i] != std::byte{0}; ++i) {
      name.push_back(std::to_integer<char>(head[i]));
    }
    REQUIRE(head[24] == std::byte{0x45});
    rows.insert({{name, big_endian<std::uint16_t>(head, 18)},
                 big_endian<std::uint64_t>(head, 0),
                 holds ? std::to_integer<unsigned>(head[13]) : 0U});
    at += 24 + length;
  }
  return rows;
}

std::set<Row> rows_of(const Model& model) {
  std::set<Row> rows;
  for (const auto& each : model.registered) {
    rows.insert({each.nexus, each.key, model.holds(each.nexus) ? model.type : 0U});
  }
  return rows;
}

// One step of a random life, by numbers that RapidCheck draws.
struct Step {
  unsigned what = 0;
  unsigned nexus = 0;
  unsigned action = 0;
  unsigned type = 0;
  unsigned keys = 0;
  unsigned flags = 0;
};

ReserveOut out_of(const Step& step, const Model& model, const Nexus& from) {
  ReserveOut out{.action = step.action % 8,
                 .type = step.type % 10,
                 .key = step.keys % 4,
                 .action_key = step.keys / 4 % 4,
                 .all_ports = step.flags % 8 == 0,
                 .keep = step.flags / 8 % 2 == 0,
                 .unregister = step.flags / 16 % 2 == 0};
  // Mostly with the right key, so that something happens.
  const auto* own = model.find(from);
  if (step.flags / 32 % 4 != 0) out.key = own == nullptr ? 0 : own->key;
  const Nexus& other = kNexuses[step.flags / 128 % kNexuses.size()];
  out.to_port = step.flags / 1024 % 8 == 0 ? 3 : other.second;
  if (out.action == kMove || step.flags / 8192 % 8 == 0) out.listed = {other.first};
  if (out.action != kRegister && out.action != kRegisterAndIgnore && out.action != kMove) {
    out.listed.clear();
  }
  return out;
}

Task<void> require_attentions(Lab* lab, Model* model) {
  for (const Nexus& name : kNexuses) {
    for (const unsigned code : model->attentions[name]) {
      const Reply reply = co_await lab->send(name, cdb_of({0x00}));
      RC_ASSERT(reply.key() == SenseKey::kUnitAttention);
      RC_ASSERT(reply.additional() == code);
    }
    model->attentions[name].clear();
    const Reply reply = co_await lab->send(name, cdb_of({0x00}));
    RC_ASSERT(reply.good());
  }
}

Task<void> compare(Lab* lab, Model* model, const Nexus* from) {
  co_await require_attentions(lab, model);
  const Bytes status = co_await lab->reserve_in(*from, 3);
  RC_ASSERT(big_endian<std::uint32_t>(status, 0) == model->generation);
  RC_ASSERT(rows_of(status) == rows_of(*model));
  const Bytes keys = co_await lab->reserve_in(*from, 0);
  RC_ASSERT(keys.size() == 8 + 8 * model->registered.size());
  const Bytes reservation = co_await lab->reserve_in(*from, 1);
  RC_ASSERT(reservation.size() == (model->type == 0 ? 8U : 24U));
  if (model->type != 0) {
    const std::uint64_t key = is_all(model->type) ? 0 : model->find(model->holder)->key;
    RC_ASSERT(big_endian<std::uint64_t>(reservation, 8) == key);
    RC_ASSERT(std::to_integer<unsigned>(reservation[21]) == model->type);
  }
}

Task<void> take(Lab* lab, Model* model, const Step* step) {
  const Nexus from = kNexuses[step->nexus % kNexuses.size()];
  const unsigned what = step->what % 16;
  if (what == 0) {
    co_await lab->stop();
    co_await lab->start(kNexuses);
    model->restart();
  } else if (what == 1) {
    co_await lab->log_out(from);
    co_await lab->log_in(from);
    model->attentions[from].clear();
  } else if (what < 6) {
    const Probe& probe = kProbes[step->keys % kProbes.size()];
    const bool is_unmap = probe.cdb[0] == std::byte{0x42};
    const Reply reply = co_await lab->send(from, probe.cdb);
    RC_ASSERT((reply.status != Status::kReservationConflict) ==
              is_allowed(*model, from, probe.columns));
    if (!is_unmap && reply.status != Status::kReservationConflict) RC_ASSERT(reply.good());
  } else {
    const ReserveOut out = out_of(*step, *model, from);
    const Result expected = model->reserve_out(from, out);
    const Result got = co_await lab->reserve_out(from, out);
    RC_ASSERT(got == expected);
  }
  co_await compare(lab, model, &from);
}

Task<void> live(Executor* home, const std::vector<Step>* steps) {
  Lab lab(*home);
  Model model;
  co_await lab.start(kNexuses);
  for (const Step& step : *steps) co_await take(&lab, &model, &step);
  co_await lab.stop();
}

TEST_CASE("Persistent reservations are those of a model of SPC-4", "[scsi][reservation]") {
  rc::check("a random life", [] {
    const auto number = rc::gen::inRange(0U, 1U << 16U);
    const auto step =
        rc::gen::build<Step>(rc::gen::set(&Step::what, number), rc::gen::set(&Step::nexus, number),
                             rc::gen::set(&Step::action, number), rc::gen::set(&Step::type, number),
                             rc::gen::set(&Step::keys, number), rc::gen::set(&Step::flags, number));
    const auto steps = *rc::gen::container<std::vector<Step>>(200, step);
    run_in_world(1, [&](Executor& home) { return live(&home, &steps); });
  });
}

// Hosts. ------------------------------------------------------------------------------------------

const Nexus kA{kA1, 1};
const Nexus kB{kB1, 1};

Task<void> register_both(Lab* lab) {
  co_await lab->start({kA, kB});
  const Result a = co_await lab->reserve_out(kA, {.action = kRegister, .action_key = 1});
  const Result b = co_await lab->reserve_out(kB, {.action = kRegister, .action_key = 2});
  REQUIRE(a == Result{});
  REQUIRE(b == Result{});
}

// A write is with a device that holds it, and its host is preempted.
Task<void> preempt_and_abort(Lab& lab) {
  co_await register_both(&lab);
  Result done = co_await lab.reserve_out(kA, {.action = kReserve, .type = 5, .key = 1});
  REQUIRE(done == Result{});
  lab.devices.hung.hang();
  const auto write = make_command(*lab.nexuses.at(kA), cdb_10(0x2A, 0, 1), {.out = filled(512, 1)});
  lab.router().execute(*write);
  done = co_await lab.reserve_out(
      kB, {.action = kPreemptAndAbort, .type = 5, .key = 2, .action_key = 1});
  CHECK(done == Result{});
  CHECK(write->answered);
  CHECK(write->reply.silent);
  lab.devices.hung.release();
  co_await write->gone();
  for (const unsigned code : {0x2A05U, 0x2F00U}) {
    const Reply attention = co_await lab.send(kA, cdb_of({0x00}));
    CHECK(attention.additional() == code);
  }
  const Reply again = co_await lab.send(kA, cdb_10(0x2A, 0, 1), filled(512, 1));
  CHECK(again.status == Status::kReservationConflict);
}

// Nothing has changed where the store refuses, and nobody hears otherwise.
Task<void> fail_to_keep(Lab& lab) {
  co_await register_both(&lab);
  lab.shelf.fails = Error::kNoSpace;
  const Result kept =
      co_await lab.reserve_out(kA, {.action = kRegister, .key = 1, .action_key = 3, .keep = true});
  CHECK(kept == refusal(Additional::kInternalTargetFailure));
  CHECK(lab.unit().reservations().keys.at({.initiator_port = kA1, .target_port = 1}) == 1);
  const Result plain = co_await lab.reserve_out(kA, {.action = kReserve, .type = 1, .key = 1});
  CHECK(plain == Result{});
}

// SPC-2's reservations beside these (CRH).
Task<void> reserve_the_old_way(Lab& lab) {
  co_await lab.start({kA, kB});
  Reply reply = co_await lab.send(kA, cdb_of({0x16}));
  REQUIRE(reply.good());
  for (const Nexus& nexus : {kA, kB}) {
    const Result out = co_await lab.reserve_out(nexus, {.action = kRegister, .action_key = 1});
    CHECK(out == kConflict);
    reply = co_await lab.send(nexus, cdb_of({0x5E, 0, 0, 0, 0, 0, 0, 0, 8}));
    CHECK(reply.status == Status::kReservationConflict);
  }
  reply = co_await lab.send(kA, cdb_of({0x17}));
  REQUIRE(reply.good());
  Result out = co_await lab.reserve_out(kA, {.action = kRegister, .action_key = 1});
  REQUIRE(out == Result{});
  for (const unsigned opcode : {0x16U, 0x56U, 0x17U, 0x57U}) {
    reply = co_await lab.send(kA, cdb_of({opcode}));
    CHECK(reply.status == Status::kReservationConflict);
  }
  out = co_await lab.reserve_out(kA, {.action = kReserve, .type = 3, .key = 1});
  REQUIRE(out == Result{});
  for (const unsigned opcode : {0x16U, 0x56U, 0x17U, 0x57U}) {
    reply = co_await lab.send(kA, cdb_of({opcode}));
    CHECK(reply.good());
    reply = co_await lab.send(kB, cdb_of({opcode}));
    CHECK(reply.status == Status::kReservationConflict);
  }
  CHECK(lab.unit().reserved_by().empty());
}

struct BadList {
  const char* what;
  Bytes list;
  unsigned action;
  Additional code;
};

std::vector<BadList> bad_lists() {
  std::vector<BadList> lists;
  const auto wrong = [&](const char* what, Bytes list, unsigned action = kRegister,
                         Additional code = Additional::kInvalidFieldInParameterList) {
    lists.push_back({what, std::move(list), action, code});
  };
  const Bytes whole = list_of({.action = kRegister, .action_key = 1, .listed = {kB1}});
  for (std::size_t length = 0; length < whole.size(); ++length) {
    wrong("cut", {whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)}, kRegister,
          Additional::kParameterListLengthError);
  }
  const Bytes move = list_of({.action = kMove, .action_key = 1, .listed = {kB1}, .to_port = 1});
  for (std::size_t length = 0; length < move.size(); ++length) {
    wrong("cut", {move.begin(), move.begin() + static_cast<std::ptrdiff_t>(length)}, kMove,
          Additional::kParameterListLengthError);
  }
  Bytes longer(28);
  wrong("longer than a list without TransportIDs", longer, kReserve,
        Additional::kParameterListLengthError);
  const auto with = [&whole](std::size_t at, unsigned value) {
    Bytes list = whole;
    list[at] = static_cast<std::byte>(value);
    return list;
  };
  wrong("another transport's", with(28, 0x40));
  wrong("a port without its ISID", with(28, 0x05));
  wrong("a length that is no multiple of four", with(31, 57));
  wrong("a length behind the list", with(31, 64));
  wrong("a length that is too small", with(31, 16));
  wrong("an ISID with another letter", with(32 + kB1.size() - 1, 'x'));
  wrong("no name", with(32, 0));
  wrong("a space in the name", with(36, ' '));
  wrong("bad UTF-8 in the name", with(36, 0xFF));
  wrong("no NUL", [&whole] {
    Bytes list = whole;
    std::ranges::fill(list.begin() + 32, list.end(), std::byte{'1'});
    return list;
  }());
  Bytes node(28);
  node[20] = std::byte{0x08};
  put_bytes(node, scsi::encode_transport_id("iqn.2026-11.org.example:nobody"));
  node[27] = static_cast<std::byte>(node.size() - 28);
  wrong("a node of which the unit knows no port", node);
  return lists;
}

Task<void> refuse_lists(Lab& lab) {
  co_await lab.start({kA});
  for (const BadList& bad : bad_lists()) {
    const auto cdb = cdb_for({.action = bad.action}, bad.list.size());
    const Reply reply = co_await lab.send(kA, cdb, bad.list);
    CAPTURE(bad.what, bad.list.size(), reply.additional());
    CHECK(reply.illegal(bad.code));
  }
  Bytes huge(scsi::kLongestReserveList + 4);
  const Reply reply = co_await lab.send(kA, cdb_for({}, huge.size()), huge);
  CHECK(reply.illegal(Additional::kParameterListLengthError));
  CHECK(lab.unit().reservations() == scsi::PersistentReservations{});
}

// A node is every port of it that the unit knows.
Task<void> name_a_node(Lab& lab) {
  co_await lab.start({{kA1, 1}, {kA2, 1}, {kB1, 1}});
  Bytes list = list_of({.action = kRegister, .action_key = 5, .listed = {kA1}});
  list.resize(28);
  put_bytes(list, scsi::encode_transport_id("iqn.2026-11.org.example:a"));
  list[27] = static_cast<std::byte>(list.size() - 28);
  const Reply reply = co_await lab.send(kB, cdb_for({}, list.size()), list);
  CHECK(reply.good());
  const Bytes status = co_await lab.reserve_in(kB, 3);
  CHECK(rows_of(status) == std::set<Row>{{{kA1, 1}, 5, 0}, {{kA2, 1}, 5, 0}, {{kB1, 1}, 5, 0}});
}

// One node fills its share, and another still finds room.
Task<void> fill_a_share(Lab& lab) {
  co_await lab.start({kA, kB});
  Result out;
  std::size_t made = 0;
  for (; made <= scsi::kMostRegistrationsOfNode; ++made) {
    const std::string port = fmt::format("iqn.2026-11.org.example:a,i,0x{:012x}", made);
    co_await lab.log_in({port, 1});
    out = co_await lab.reserve_out({port, 1}, {.action = kRegister, .action_key = 1});
    if (out != Result{}) break;
  }
  CHECK(out == refusal(Additional::kInsufficientRegistrationResources));
  CHECK(made == scsi::kMostRegistrationsOfNode);
  out = co_await lab.reserve_out(kB, {.action = kRegister, .action_key = 1});
  CHECK(out == Result{});
}

Task<void> report_capabilities(Lab& lab) {
  co_await lab.start({kA});
  Bytes told = co_await lab.reserve_in(kA, 2);
  CHECK(told == bytes_of({0, 8, 0x9D, 0x90, 0xEA, 0x01, 0, 0}));
  const Result out =
      co_await lab.reserve_out(kA, {.action = kRegister, .action_key = 1, .keep = true});
  CHECK(out == Result{});
  told = co_await lab.reserve_in(kA, 2);
  CHECK(told[3] == std::byte{0x91});
}

// The holder of RESERVE hears it as well.
Task<void> clear_the_old_way(Lab& lab) {
  co_await lab.start({kA, kB});
  const Reply reserved = co_await lab.send(kA, cdb_of({0x16}));
  REQUIRE(reserved.good());
  CHECK(lab.unit().reserved_by() == kA1);
  const Error error = co_await lab.unit().clear_reservations();
  CHECK(error == Error::kNone);
  const Reply attention = co_await lab.send(kA, cdb_of({0x00}));
  CHECK(attention.attention(Additional::kReservationsPreempted));
  const Reply read = co_await lab.send(kB, cdb_10(0x28, 0, 1));
  CHECK(read.good());
}

Task<void> clear_as_operator(Lab& lab) {
  co_await register_both(&lab);
  Result out =
      co_await lab.reserve_out(kA, {.action = kRegister, .key = 1, .action_key = 1, .keep = true});
  out = co_await lab.reserve_out(kA, {.action = kReserve, .type = 3, .key = 1});
  REQUIRE_FALSE(lab.shelf.kept.reservations.keys.empty());
  const Error error = co_await lab.unit().clear_reservations();
  CHECK(error == Error::kNone);
  CHECK(lab.shelf.kept.reservations.keys.empty());
  for (const Nexus& nexus : {kA, kB}) {
    const Reply attention = co_await lab.send(nexus, cdb_of({0x00}));
    CHECK(attention.additional() == 0x2A03);
    const Reply read = co_await lab.send(nexus, cdb_10(0x28, 0, 1));
    CHECK(read.good());
  }
}

// What was kept is lost, also for the next start, until a host replaces it.
Task<void> lose(Lab& lab) {
  constexpr unsigned kReplace = 8;
  const Result lost = refusal(Additional::kPersistentReservationInformationLost);
  co_await register_both(&lab);
  Error error = co_await lab.unit().lose_reservations();
  CHECK(error == Error::kInvalid);  // Nothing is kept.
  ReserveOut replacement{.action = kReplace, .type = 5, .action_key = 7, .keep = true};
  Result out = co_await lab.reserve_out(kB, replacement);
  CHECK(out == refusal(Additional::kInvalidReleaseOfPersistentReservation));
  out =
      co_await lab.reserve_out(kA, {.action = kRegister, .key = 1, .action_key = 1, .keep = true});
  error = co_await lab.unit().lose_reservations();
  CHECK(error == Error::kNone);
  for (const bool restarted : {false, true}) {
    if (restarted) {
      co_await lab.stop();
      co_await lab.start({kA, kB});
    }
    for (const auto& cdb :
         {kTestUnitReady, cdb_10(0x28, 0, 1), cdb_of({0x16}), cdb_of({0x1B}), cdb_of({0x25}),
          cdb_of({0x5E, 0, 0, 0, 0, 0, 0, 0, 8}), cdb_of({0xC9})}) {
      const Reply reply = co_await lab.send(kA, cdb);
      CHECK(reply.failed_with(SenseKey::kDataProtect,
                              Additional::kPersistentReservationInformationLost));
    }
    for (const auto& cdb : {cdb_of({0x12, 0, 0, 0, 36}), cdb_of({0x03, 0, 0, 0, 18}),
                            cdb_12(0xA0, 0, 256), cdb_of({0x1B, 0, 0, 0, 1})}) {
      const Reply reply = co_await lab.send(kA, cdb);
      CHECK(reply.good());
    }
    out = co_await lab.reserve_out(kA, {.action = kRegister, .action_key = 1});
    CHECK(out == lost);
  }
  for (const ReserveOut& wrong :
       {ReserveOut{.action = kReplace, .type = 5, .key = 1, .action_key = 7},
        ReserveOut{.action = kReplace, .type = 5},
        ReserveOut{.action = kReplace, .type = 5, .action_key = 7, .all_ports = true}}) {
    out = co_await lab.reserve_out(kB, wrong);
    CHECK(out == refusal(Additional::kInvalidFieldInParameterList));
  }
  replacement.type = 2;
  out = co_await lab.reserve_out(kB, replacement);
  CHECK(out == refusal(Additional::kInvalidFieldInCdb));
  replacement.type = 5;
  out = co_await lab.reserve_out(kB, replacement);
  CHECK(out == Result{});
  const Bytes status = co_await lab.reserve_in(kA, 3);
  CHECK(big_endian<std::uint32_t>(status, 0) == 0);  // PRGENERATION
  CHECK(rows_of(status) == std::set<Row>{{kB, 7, 5}});
  CHECK(lab.shelf.kept.reservations.keys.size() == 1);
  Reply write = co_await lab.send(kB, cdb_10(0x2A, 0, 1), filled(512, 1));
  CHECK(write.good());
  write = co_await lab.send(kA, cdb_10(0x2A, 0, 1), filled(512, 1));
  CHECK(write.status == Status::kReservationConflict);
}

// Hosts that fence each other at the same time wait for neither: one wins.
Task<void> preempt_each_other(Lab& lab) {
  co_await register_both(&lab);
  const TimePoint begun = lab.unit().home().now();
  std::vector<std::unique_ptr<FakeCommand>> commands;
  for (const auto& [from, key, victim] : {std::tuple{kA, 1U, 2U}, std::tuple{kB, 2U, 1U}}) {
    const ReserveOut out{.action = kPreemptAndAbort, .type = 5, .key = key, .action_key = victim};
    const Bytes list = list_of(out);
    commands.push_back(
        make_command(*lab.nexuses.at(from), cdb_for(out, list.size()), {.out = list}));
    lab.router().execute(*commands.back());
  }
  for (const auto& command : commands) co_await command->gone();
  CHECK(lab.unit().home().now() - begun < std::chrono::milliseconds(100));
  CHECK(lab.unit().reservations().keys.size() == 1);
}

// A registration waits for its store: no reservation of the other kind comes between.
Task<void> reserve_meanwhile(Lab& lab) {
  co_await lab.start({kA, kB});
  const ReserveOut out{.action = kRegister, .action_key = 1, .keep = true};
  const Bytes list = list_of(out);
  const auto command = make_command(*lab.nexuses.at(kA), cdb_for(out, list.size()), {.out = list});
  lab.router().execute(*command);
  const Reply reserve = co_await lab.send(kB, cdb_of({0x16}));
  CHECK(reserve.status == Status::kBusy);
  co_await command->gone();
  CHECK(command->reply.good());
  const Reply later = co_await lab.send(kB, cdb_of({0x16}));
  CHECK(later.status == Status::kReservationConflict);
}

// A conflict is reported before attentions other than those of resets.
Task<void> report_in_order(Lab& lab) {
  co_await register_both(&lab);
  Result out = co_await lab.reserve_out(kB, {.action = kReserve, .type = 5, .key = 2});
  REQUIRE(out == Result{});
  out = co_await lab.reserve_out(kB, {.action = kPreempt, .type = 5, .key = 2, .action_key = 1});
  REQUIRE(out == Result{});
  Reply reply = co_await lab.send(kA, cdb_10(0x2A, 0, 1), filled(512, 1));
  CHECK(reply.status == Status::kReservationConflict);
  reply = co_await lab.send(kA, cdb_10(0x28, 0, 1));
  CHECK(reply.attention(Additional::kRegistrationsPreempted));
  const auto reset = co_await lab.router().manage(
      *lab.nexuses.at(kB), {.function = scsi::TaskManagementFunction::kLogicalUnitReset});
  REQUIRE(reset == scsi::TaskManagementResponse::kComplete);
  reply = co_await lab.send(kA, cdb_10(0x2A, 0, 1), filled(512, 1));
  CHECK(reply.attention(Additional::kBusDeviceReset));
}

// iSCSI compares names without regard to case.
Task<void> log_in_in_capitals(Lab& lab) {
  const Nexus loud{"iqn.2026-11.org.example:A,i,0x00023d000001", 1};
  co_await lab.start({loud, kB});
  Result out = co_await lab.reserve_out(loud, {.action = kRegister, .action_key = 1});
  REQUIRE(out == Result{});
  out = co_await lab.reserve_out(loud, {.action = kReserve, .type = 1, .key = 1});
  REQUIRE(out == Result{});
  co_await lab.log_out(loud);
  co_await lab.log_in(kA);
  const Reply write = co_await lab.send(kA, cdb_10(0x2A, 0, 1), filled(512, 1));
  CHECK(write.good());
}

TEST_CASE("Hosts that fence each other wait for nobody", "[scsi][reservation]") {
  in_lab(preempt_each_other);
}

TEST_CASE("RESERVE does not come between a registration and its store", "[scsi][reservation]") {
  in_lab(reserve_meanwhile);
}

TEST_CASE("Attentions and conflicts are reported in SAM's order", "[scsi][reservation]") {
  in_lab(report_in_order);
}

TEST_CASE("A nexus is the same in capitals", "[scsi][reservation]") { in_lab(log_in_in_capitals); }

TEST_CASE("PREEMPT AND ABORT takes the victim's commands with it", "[scsi][reservation]") {
  in_lab(preempt_and_abort);
}

TEST_CASE("What cannot be kept is not reserved", "[scsi][reservation]") { in_lab(fail_to_keep); }

TEST_CASE("RESERVE and RELEASE work beside registrations", "[scsi][reservation]") {
  in_lab(reserve_the_old_way);
}

TEST_CASE("Lists cut anywhere and wrong TransportIDs are refused", "[scsi][reservation]") {
  in_lab(refuse_lists);
}

TEST_CASE("A TransportID of a node is each of its ports", "[scsi][reservation]") {
  in_lab(name_a_node);
}

TEST_CASE("A node registers no more than its share", "[scsi][reservation]") {
  in_lab(fill_a_share);
}

TEST_CASE("REPORT CAPABILITIES says what the unit can keep", "[scsi][reservation]") {
  in_lab(report_capabilities);
}

TEST_CASE("Lost reservations are replaced", "[scsi][reservation]") { in_lab(lose); }

TEST_CASE("An operator clears reservations", "[scsi][reservation]") {
  in_lab(clear_as_operator);
  in_lab(clear_the_old_way);
}

}  // namespace
}  // namespace sandbay::testing::reservations_test
