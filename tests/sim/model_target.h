// ModelTarget: a small iSCSI target with connections, CmdSN order and task management, for
// simulations of the initiator alone. It shares only the PDU structures with the product.
//
// It is as nasty as the RFC lets it be: a task whose connection was lost goes on and may still
// write until the connection has been logged out (by Logout, or implicitly by a reinstatement),
// R2Ts and Data-Ins come in random pieces, answers in random order and after random times.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../unit/iscsi/scripted_target.h"
#include "runtime/random.h"
#include "runtime/sync.h"

namespace sandbay::simtest {

class ModelTarget {
 public:
  ModelTarget(std::uint64_t seed, std::uint64_t block_count, std::uint32_t block_bytes,
              std::uint32_t window);

  // Listens until stop().
  Endpoint start();
  Task<void> stop();
  // Resets one of the connections that are there.
  void reset_one();
  std::uint64_t logouts() const { return logouts_; }
  std::uint64_t duplicates() const { return duplicates_; }

 private:
  using Pdu = iscsi::test::ScriptedPdu;
  struct Link {
    std::unique_ptr<iscsi::test::ScriptedConnection> wire;
    std::uint16_t cid = 0;
    bool open = true;
  };
  using LinkRef = std::shared_ptr<Link>;
  struct ModelTask {
    LinkRef link;
    Pdu command;
    std::vector<std::byte> data;  // Of a write.
    std::size_t received = 0;
    bool final_seen = false;
    bool terminated = false;
    Condition arrived;
  };
  using TaskRef = std::shared_ptr<ModelTask>;
  struct Session {
    std::array<std::byte, 6> isid{};
    std::uint16_t tsih = 0;
    std::uint32_t exp_cmd_sn = 0;
    std::map<std::uint16_t, LinkRef> links;
    std::map<std::uint32_t, std::pair<LinkRef, Pdu>> early;  // By CmdSN, behind a gap.
    std::map<std::uint32_t, TaskRef> tasks;                  // By tag.
    std::vector<Pdu> early_data;                             // Of commands behind the gap.
  };
  using SessionRef = std::shared_ptr<Session>;

  Task<void> accept_loop();
  Task<void> serve(std::unique_ptr<iscsi::test::ScriptedConnection> wire);
  SessionRef admit(const iscsi::LoginRequest& login, LinkRef link);
  void end_link(Session& session, std::uint16_t cid);
  Task<void> receive(SessionRef session, LinkRef link, Pdu pdu);
  void take_in_order(SessionRef session, LinkRef link, Pdu pdu);
  void deliver(SessionRef session, LinkRef link, Pdu pdu);
  void begin_command(SessionRef session, LinkRef link, Pdu pdu);
  Task<void> run_command(SessionRef session, TaskRef task);
  Task<bool> gather(SessionRef session, TaskRef task);
  Task<void> send_read(SessionRef session, TaskRef task);
  void data_out(Session& session, const Pdu& pdu);
  Task<void> manage(SessionRef session, LinkRef link, Pdu pdu);
  Task<void> log_out(SessionRef session, LinkRef link, Pdu pdu);
  Task<void> answer_nop(SessionRef session, LinkRef link, Pdu pdu);
  void refresh(Session& session, Link& link);
  Task<void> pause();
  Task<void> send(SessionRef session, LinkRef link, std::function<iscsi::Bhs()> make,
                  std::vector<std::byte> data = {});

  Random random_;
  std::uint32_t block_bytes_;
  std::uint32_t window_;
  std::vector<std::byte> store_;
  std::unique_ptr<Listener> listener_;
  std::map<std::uint16_t, SessionRef> sessions_;
  std::vector<LinkRef> links_;
  std::uint16_t next_tsih_ = 1;
  std::uint64_t logouts_ = 0;
  std::uint64_t duplicates_ = 0;
  Gate gate_;
};

}  // namespace sandbay::simtest
