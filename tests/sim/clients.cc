// Random clients of a simulated disk.
#include "clients.h"

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

Task<iscsi::InitiatorSession::Reply> Clients::ask(iscsi::InitiatorSession& session,
                                                  std::array<std::byte, 16> cdb, BufferList out,
                                                  std::size_t in_bytes) {
  iscsi::InitiatorSession::Reply reply;
  reply.data_out = std::move(out);
  for (std::uint32_t count = 0; count < kMaximumTries; ++count) {
    iscsi::ScsiRequest request;
    request.cdb = cdb;
    request.timeout = timeout_;
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

bool Clients::is_borne(const iscsi::ScsiResult& result, bool aborts) const {
  return timeout_ > Duration::zero() || (aborts && result.error == Error::kCancelled);
}

Task<void> Clients::write_once(iscsi::InitiatorSession& session, bool aborts) {
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
  const bool acknowledged = reply.result.whole();
  model_.end_write(write, acknowledged);
  if (!acknowledged) ++unacknowledged_;
  if (acknowledged || is_borne(reply.result, aborts)) co_return;
  complain(explain("write", reply.result));
}

Task<void> Clients::read_blocks(iscsi::InitiatorSession& session, std::uint64_t first,
                                std::uint64_t count, bool aborts) {
  const ReferenceDisk::Operation read = model_.begin_read(first, count);
  const std::size_t wanted = count * model_.block_bytes();
  const iscsi::InitiatorSession::Reply reply =
      co_await ask(session, transfer_cdb(0x88, first, count), {}, wanted);
  std::vector<std::byte> bytes(wanted);
  if (reply.result.whole()) {
    reply.data_in.copy_to(bytes);
    const std::string wrong = model_.end_read(read, bytes);
    if (!wrong.empty()) complain(wrong);
    co_return;
  }
  model_.forget_read(read);
  if (is_borne(reply.result, aborts)) co_return;
  complain(explain("read", reply.result));
}

Task<void> Clients::read_once(iscsi::InitiatorSession& session, bool aborts) {
  const std::uint64_t count = random_.between(1, std::min<std::uint64_t>(32, model_.block_count()));
  const std::uint64_t first = random_.below(model_.block_count() - count + 1);
  co_await read_blocks(session, first, count, aborts);
}

Task<void> Clients::flush_once(iscsi::InitiatorSession& session, bool aborts) {
  const iscsi::InitiatorSession::Reply reply =
      co_await ask(session, transfer_cdb(0x91, 0, 0), {}, 0);
  if (reply.result.good() || is_borne(reply.result, aborts)) co_return;
  complain(explain("flush", reply.result));
}

Task<void> Clients::client(iscsi::InitiatorSession& session, std::uint32_t count, bool aborts,
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

Task<void> Clients::read_everything(iscsi::InitiatorSession& session) {
  for (std::uint64_t first = 0; first < model_.block_count() && !failed(); first += 32) {
    const std::uint64_t count = std::min<std::uint64_t>(32, model_.block_count() - first);
    co_await read_blocks(session, first, count, false);
  }
}

}  // namespace sandbay::simtest
