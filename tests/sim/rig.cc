// Set-up, clients and tear-down of a simulated system.
#include "rig.h"

#include <fmt/core.h>

#include <cassert>

#include "runtime/byte_order.h"

namespace sandbay::simtest {
namespace {

constexpr std::uint32_t kMaximumTries = 200;

std::array<std::byte, 16> transfer_cdb(std::uint8_t opcode, std::uint64_t lba,
                                       std::uint64_t blocks) {
  std::array<std::byte, 16> cdb{};
  cdb[0] = static_cast<std::byte>(opcode);
  put_big_endian<std::uint64_t>(cdb, 2, lba);
  put_big_endian<std::uint32_t>(cdb, 10, static_cast<std::uint32_t>(blocks));
  return cdb;
}

bool to_be_repeated(const iscsi::ScsiResult& result) {
  if (result.error != Error::kNone) return false;
  return result.status == scsi::Status::kBusy || result.status == scsi::Status::kTaskSetFull ||
         (result.status == scsi::Status::kCheckCondition &&
          result.sense_key() == scsi::SenseKey::kUnitAttention);
}

std::string explain(const char* what, const iscsi::ScsiResult& result) {
  return fmt::format("{}: {}, status {:02x}h, sense key {:x}h, additional sense {:04x}h", what,
                     describe(result.error), static_cast<unsigned>(result.status),
                     static_cast<unsigned>(result.sense_key()),
                     static_cast<unsigned>(result.additional()));
}

}  // namespace

Task<Completion> SlowDevice::later(Request request) {
  Random& random = home().random();
  const auto most = static_cast<std::uint64_t>(most_.count());
  co_await home().sleep_for(Duration(static_cast<std::int64_t>(random.below(most + 1))));
  Completion completion = co_await below().submit(std::move(request));
  co_return completion;
}

Rig::Rig(RigOptions options)
    : options_(std::move(options)),
      world_(sim::World::create({.seed = options_.seed, .executors = options_.executors})),
      random_(options_.seed * 7919 + 1),
      model_(options_.block_count, options_.block_bytes) {}

Rig::~Rig() = default;

Task<void> Rig::set_up() {
  // The unit lives on the last executor, sessions and connections anywhere.
  Executor& home = executor(options_.executors - 1);
  auto memory =
      MemoryDevice::create(home, {.byte_count = options_.block_count * options_.block_bytes,
                                  .block_bytes = options_.block_bytes});
  assert(memory.has_value());
  memory_ = std::move(*memory);
  device_ = std::make_unique<SlowDevice>(*memory_, options_.device_delay);
  unit_ = std::make_unique<scsi::LogicalUnit>(*device_, scsi::LogicalUnitOptions{});
  router_ = std::make_unique<scsi::TaskRouter>(world_->executors());
  const Error added = co_await router_->add(0, unit_.get());
  assert(added == Error::kNone);
  server_ = iscsi::TargetServer::create({});
  iscsi::TargetOptions target{
      .name = kTargetName,
      .device = router_.get(),
      .access = {iscsi::AccessRecord{}},
      .keys = options_.target_keys,
      .queue_depth = options_.target_queue_depth,
  };
  std::string message;
  const Error made = co_await server_->add_target(std::move(target), &message);
  if (made != Error::kNone) complain("add_target: " + message);
  const Result<Endpoint> portal =
      server_->add_portal({.listen = Endpoint::ipv4(0x7F000001, kPort)});
  if (!portal.has_value()) complain("add_portal failed");
  endpoint_ = portal.value_or(Endpoint());
}

Task<void> Rig::tear_down() {
  co_await server_->shutdown();
  server_.reset();
  co_await router_->remove(0);
  co_await router_->close();
  router_.reset();
  Executor& home = unit_->home();
  const bool closed =
      co_await invoke_on(home, unit_->close(world_->now() + std::chrono::minutes(5)));
  if (!closed) complain("the logical unit still holds commands");
  unit_.reset();
}

Task<void> Rig::whole(std::function<Task<void>()> body) {
  co_await set_up();
  if (!failed()) co_await body();
  co_await tear_down();
}

std::string Rig::run(std::function<Task<void>()> body, Duration limit) {
  const bool ended = world_->run([&] { return whole(body); }, limit);
  if (!ended) {
    // Its coroutines are still suspended: nothing of it may be destroyed any more.
    std::string wrong = failed() ? wrong_ : "the world came to a standstill";
    (void)world_.release();
    (void)server_.release();
    (void)router_.release();
    (void)unit_.release();
    (void)device_.release();
    (void)memory_.release();
    return wrong;
  }
  return wrong_;
}

Task<iscsi::InitiatorSession::Reply> Rig::ask(iscsi::InitiatorSession& session,
                                              std::array<std::byte, 16> cdb, BufferList out,
                                              std::size_t in_bytes) {
  iscsi::InitiatorSession::Reply reply;
  reply.data_out = std::move(out);
  for (std::uint32_t count = 0; count < kMaximumTries; ++count) {
    iscsi::ScsiRequest request;
    request.cdb = cdb;
    request.data_out = std::move(reply.data_out);
    if (in_bytes != 0 && reply.data_in.empty()) {
      reply.data_in = co_await session.home().buffers().allocate(in_bytes);
    }
    request.data_in = std::move(reply.data_in);
    reply = co_await session.execute(std::move(request));
    if (!to_be_repeated(reply.result)) break;
    co_await session.home().sleep_for(std::chrono::milliseconds(1));
  }
  co_return reply;
}

Task<void> Rig::write_once(iscsi::InitiatorSession& session, bool aborts) {
  const std::uint64_t count = random_.between(1, std::min<std::uint64_t>(32, model_.block_count()));
  const std::uint64_t first = random_.below(model_.block_count() - count + 1);
  BufferList data = co_await session.home().buffers().allocate(count * model_.block_bytes());
  const ReferenceDisk::Operation write = model_.begin_write(first, count);
  std::vector<std::byte> bytes(count * model_.block_bytes());
  for (std::uint64_t index = 0; index < count; ++index) {
    ReferenceDisk::fill(
        std::span(bytes).subspan(index * model_.block_bytes(), model_.block_bytes()), first + index,
        write.value);
  }
  data.copy_from(bytes);
  const iscsi::InitiatorSession::Reply reply =
      co_await ask(session, transfer_cdb(0x8A, first, count), std::move(data), 0);
  model_.end_write(write, reply.result.good());
  if (reply.result.good() || (aborts && reply.result.error == Error::kCancelled)) co_return;
  complain(explain("write", reply.result));
}

Task<void> Rig::read_blocks(iscsi::InitiatorSession& session, std::uint64_t first,
                            std::uint64_t count, bool aborts) {
  const ReferenceDisk::Operation read = model_.begin_read(first, count);
  const std::size_t wanted = count * model_.block_bytes();
  const iscsi::InitiatorSession::Reply reply =
      co_await ask(session, transfer_cdb(0x88, first, count), {}, wanted);
  std::vector<std::byte> bytes(wanted);
  if (reply.result.good()) {
    reply.data_in.copy_to(bytes);
    const std::string wrong = model_.end_read(read, bytes);
    if (!wrong.empty()) complain(wrong);
    co_return;
  }
  model_.forget_read(read);
  if (aborts && reply.result.error == Error::kCancelled) co_return;
  complain(explain("read", reply.result));
}

Task<void> Rig::read_once(iscsi::InitiatorSession& session, bool aborts) {
  const std::uint64_t count = random_.between(1, std::min<std::uint64_t>(32, model_.block_count()));
  const std::uint64_t first = random_.below(model_.block_count() - count + 1);
  co_await read_blocks(session, first, count, aborts);
}

Task<void> Rig::flush_once(iscsi::InitiatorSession& session, bool aborts) {
  const iscsi::InitiatorSession::Reply reply =
      co_await ask(session, transfer_cdb(0x91, 0, 0), {}, 0);
  if (reply.result.good() || (aborts && reply.result.error == Error::kCancelled)) co_return;
  complain(explain("flush", reply.result));
}

Task<void> Rig::client(iscsi::InitiatorSession& session, std::uint32_t count, bool aborts,
                       Gate& gate) {
  for (std::uint32_t index = 0; index < count && !failed(); ++index) {
    const std::uint64_t draw = random_.below(100);
    if (draw < 45) {
      co_await write_once(session, aborts);
    } else if (draw < 95) {
      co_await read_once(session, aborts);
    } else {
      co_await flush_once(session, aborts);
    }
  }
  gate.leave();
}

Task<void> Rig::read_everything(iscsi::InitiatorSession& session) {
  for (std::uint64_t first = 0; first < model_.block_count() && !failed(); first += 32) {
    const std::uint64_t count = std::min<std::uint64_t>(32, model_.block_count() - first);
    co_await read_blocks(session, first, count, false);
  }
}

}  // namespace sandbay::simtest
