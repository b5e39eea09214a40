// The model target: RFC 7143 sections 4.2.2.1 (order), 6.3.4 and 6.3.5
// (reinstatement), 11.5, 11.14.
#include "model_target.h"

#include <algorithm>
#include <cassert>

namespace sandbay::simtest {

using namespace iscsi;  // NOLINT: the PDU structures, throughout.

ModelTarget::ModelTarget(std::uint64_t seed, std::uint64_t block_count, std::uint32_t block_bytes,
                         std::uint32_t window)
    : random_(seed),
      block_bytes_(block_bytes),
      window_(window),
      store_(block_count * block_bytes) {}

Endpoint ModelTarget::start() {
  auto listener = Executor::current().listen(Endpoint::ipv4(0x7F000001, 3260));
  assert(listener.has_value());
  listener_ = std::move(*listener);
  if (gate_.enter()) spawn(accept_loop());
  return listener_->local();
}

Task<void> ModelTarget::stop() {
  listener_->shutdown();
  for (const LinkRef& link : links_) link->wire->reset();
  for (auto& [tsih, session] : sessions_) {
    for (auto& [tag, task] : session->tasks) {
      task->terminated = true;
      task->arrived.notify_all();
    }
  }
  co_await gate_.close();
}

void ModelTarget::reset_one() {
  std::vector<LinkRef> open;
  for (const LinkRef& link : links_) {
    if (link->open) open.push_back(link);
  }
  if (!open.empty()) open[random_.below(open.size())]->wire->reset();
}

Task<void> ModelTarget::pause() {
  const auto time = static_cast<std::int64_t>(random_.below(2000));
  co_await Executor::current().sleep_for(std::chrono::microseconds(time));
}

Task<void> ModelTarget::accept_loop() {
  while (true) {
    auto stream = co_await listener_->accept();
    if (!stream.has_value()) break;
    if (!gate_.enter()) break;
    spawn(serve(std::make_unique<test::ScriptedConnection>(std::move(*stream))));
  }
  gate_.leave();
}

// Ends what is allegiant to a connection: nothing of it takes effect from here on.
void ModelTarget::end_link(Session& session, std::uint16_t cid) {
  const auto found = session.links.find(cid);
  if (found == session.links.end()) return;
  const LinkRef link = found->second;
  session.links.erase(found);
  link->wire->reset();
  std::erase_if(session.early, [&](const auto& entry) { return entry.second.first == link; });
  for (auto& [tag, task] : session.tasks) {
    if (task->link != link) continue;
    task->terminated = true;
    task->arrived.notify_all();
  }
}

ModelTarget::SessionRef ModelTarget::admit(const LoginRequest& login, LinkRef link) {
  link->cid = login.cid;
  if (login.tsih != 0) {
    const auto found = sessions_.find(login.tsih);
    if (found == sessions_.end()) return nullptr;
    end_link(*found->second, login.cid);
    found->second->links[login.cid] = link;
    return found->second;
  }
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    const SessionRef old = it->second;
    if (old->isid != login.isid.bytes) {
      ++it;
      continue;
    }
    while (!old->links.empty()) end_link(*old, old->links.begin()->first);
    for (auto& [tag, task] : old->tasks) {
      task->terminated = true;
      task->arrived.notify_all();
    }
    it = sessions_.erase(it);
  }
  auto session = std::make_shared<Session>();
  session->isid = login.isid.bytes;
  session->tsih = next_tsih_++;
  session->exp_cmd_sn = login.cmd_sn;
  session->links[login.cid] = link;
  sessions_[session->tsih] = session;
  return session;
}

void ModelTarget::refresh(Session& session, Link& link) {
  link.wire->exp_cmd_sn = session.exp_cmd_sn;
  link.wire->max_cmd_sn = session.exp_cmd_sn + window_ - 1;
}

Task<void> ModelTarget::send(SessionRef session, LinkRef link, std::function<Bhs()> make,
                             std::vector<std::byte> data) {
  co_await link->wire->sending.lock();
  refresh(*session, *link);
  const Bhs bhs = make();
  if (link->open) co_await link->wire->send(bhs, std::move(data));
  link->wire->sending.unlock();
}

Task<void> ModelTarget::serve(std::unique_ptr<test::ScriptedConnection> wire) {
  auto link = std::make_shared<Link>();
  link->wire = std::move(wire);
  links_.push_back(link);
  Pdu first = co_await link->wire->next();
  SessionRef session;
  if (!first.closed) {
    const LoginRequest login = parse_login_request(first.bhs);
    session = admit(login, link);
    if (session == nullptr) {
      co_await link->wire->respond(login, LoginStatus::kSessionDoesNotExist, "", 0);
    } else {
      refresh(*session, *link);
      co_await link->wire->log_in_from(std::move(first),
                                       {.tsih = session->tsih, .own_numbers = true});
    }
  }
  while (session != nullptr) {
    Pdu pdu = co_await link->wire->next();
    if (pdu.closed) break;
    co_await receive(session, link, std::move(pdu));
  }
  link->open = false;
  gate_.leave();
}

// --- Order ---------------------------------------------------------------------------------------

Task<void> ModelTarget::receive(SessionRef session, LinkRef link, Pdu pdu) {
  if (pdu.opcode() == Opcode::kDataOut) {
    data_out(*session, pdu);
  } else if (is_immediate(pdu.bhs)) {
    deliver(session, link, std::move(pdu));
  } else {
    take_in_order(session, link, std::move(pdu));
  }
  co_return;
}

void ModelTarget::take_in_order(SessionRef session, LinkRef link, Pdu pdu) {
  const std::uint32_t cmd_sn = cmd_sn_of(pdu.bhs);
  const bool too_far = !serial_less(cmd_sn, session->exp_cmd_sn + window_);
  assert(!too_far);  // The initiator keeps to the window.
  if (serial_less(cmd_sn, session->exp_cmd_sn) || session->early.contains(cmd_sn)) {
    ++duplicates_;
    return;
  }
  session->early.emplace(cmd_sn, std::pair(link, std::move(pdu)));
  while (true) {
    const auto next = session->early.find(session->exp_cmd_sn);
    if (next == session->early.end()) return;
    auto [from, ready] = std::move(next->second);
    session->early.erase(next);
    ++session->exp_cmd_sn;
    deliver(session, from, std::move(ready));
  }
}

void ModelTarget::deliver(SessionRef session, LinkRef link, Pdu pdu) {
  switch (pdu.opcode()) {
    case Opcode::kScsiCommand:
      return begin_command(session, link, std::move(pdu));
    case Opcode::kTaskManagementRequest:
      if (gate_.enter()) spawn(manage(session, link, std::move(pdu)));
      return;
    case Opcode::kLogoutRequest:
      if (gate_.enter()) spawn(log_out(session, link, std::move(pdu)));
      return;
    case Opcode::kNopOut:
      if (gate_.enter()) spawn(answer_nop(session, link, std::move(pdu)));
      return;
    default:
      assert(!"an opcode that the initiator has no reason to send");
  }
}

// --- Commands ------------------------------------------------------------------------------------

void ModelTarget::begin_command(SessionRef session, LinkRef link, Pdu pdu) {
  const auto command = parse_scsi_command(pdu.bhs);
  assert(command.has_value());
  auto task = std::make_shared<ModelTask>();
  task->link = link;
  if (command->write) {
    task->data.resize(command->expected_data_transfer_length);
    std::ranges::copy(pdu.data, task->data.begin());
    task->received = pdu.data.size();
  }
  task->final_seen = command->final;
  task->command = std::move(pdu);
  const bool added = session->tasks.emplace(command->initiator_task_tag, task).second;
  assert(added);  // No tag is used twice at a time.
  (void)added;
  const auto early = [&](const Pdu& data) {
    return initiator_task_tag(data.bhs) == command->initiator_task_tag;
  };
  for (const Pdu& data : session->early_data) {
    if (early(data)) data_out(*session, data);
  }
  std::erase_if(session->early_data, early);
  if (gate_.enter()) spawn(run_command(session, task));
}

void ModelTarget::data_out(Session& session, const Pdu& pdu) {
  const auto parsed = parse_data_out(pdu.bhs);
  const auto found = session.tasks.find(parsed->initiator_task_tag);
  if (found == session.tasks.end()) {
    // Of a command that waits for its turn, or of one that was aborted meanwhile.
    const bool early = std::ranges::any_of(session.early, [&](const auto& entry) {
      return initiator_task_tag(entry.second.second.bhs) == parsed->initiator_task_tag;
    });
    if (early) session.early_data.push_back(pdu);
    return;
  }
  ModelTask& task = *found->second;
  assert(parsed->buffer_offset + pdu.data.size() <= task.data.size());
  std::ranges::copy(pdu.data, task.data.begin() + parsed->buffer_offset);
  task.received += pdu.data.size();
  task.final_seen = task.final_seen || parsed->final;
  task.arrived.notify_all();
}

// Unsolicited data first, then the rest in R2Ts of random lengths. False: the task was ended.
Task<bool> ModelTarget::gather(SessionRef session, TaskRef task) {
  while (!task->final_seen && !task->terminated && task->link->open)
    co_await task->arrived.wait_until(Executor::current().now() + std::chrono::milliseconds(5));
  std::uint32_t r2t_sn = 0;
  while (task->received < task->data.size()) {
    if (task->terminated || !task->link->open) co_return false;
    const auto offset = static_cast<std::uint32_t>(task->received);
    const auto left = static_cast<std::uint32_t>(task->data.size() - task->received);
    const auto wanted =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(left, random_.between(1, 8) * 512));
    const std::uint32_t tag = static_cast<std::uint32_t>(random_.below(1U << 30));
    co_await send(session, task->link, [&, link = task->link] {
      Bhs bhs;
      write_ready_to_transfer({.initiator_task_tag = initiator_task_tag(task->command.bhs),
                               .target_transfer_tag = tag,
                               .numbers = link->wire->numbers_without_status(),
                               .r2t_sn = r2t_sn,
                               .buffer_offset = offset,
                               .desired_data_transfer_length = wanted},
                              bhs);
      return bhs;
    });
    ++r2t_sn;
    while (task->received < offset + wanted) {
      if (task->terminated || !task->link->open) co_return false;
      co_await task->arrived.wait_until(Executor::current().now() + std::chrono::milliseconds(5));
    }
  }
  co_return !task->terminated;
}

Task<void> ModelTarget::send_read(SessionRef session, TaskRef task) {
  const auto command = parse_scsi_command(task->command.bhs);
  const std::uint64_t lba = big_endian<std::uint64_t>(command->cdb, 2);
  const std::uint32_t whole = command->expected_data_transfer_length;
  // What is there at one moment; blocks are not torn.
  const auto begin = store_.begin() + static_cast<std::ptrdiff_t>(lba * block_bytes_);
  const std::vector<std::byte> content(begin, begin + whole);
  const bool collapse = random_.chance(0.5);
  std::uint32_t offset = 0;
  std::uint32_t data_sn = 0;
  while (offset < whole) {
    const auto part = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(whole - offset, random_.between(1, 4) * 512));
    const bool last = offset + part == whole;
    std::vector<std::byte> data(content.begin() + offset, content.begin() + offset + part);
    if (task->terminated) co_return;
    co_await send(
        session, task->link,
        [&, link = task->link] {
          Bhs bhs;
          write_data_in({.final = last,
                         .has_status = last && collapse,
                         .data_segment_length = part,
                         .initiator_task_tag = command->initiator_task_tag,
                         .numbers = last && collapse ? link->wire->numbers()
                                                     : link->wire->numbers_without_status(),
                         .data_sn = data_sn,
                         .buffer_offset = offset},
                        bhs);
          if (last && collapse) session->tasks.erase(command->initiator_task_tag);
          return bhs;
        },
        std::move(data));
    offset += part;
    ++data_sn;
  }
  if (collapse || task->terminated) co_return;
  co_await send(session, task->link, [&, link = task->link] {
    Bhs bhs;
    write_scsi_response({.initiator_task_tag = command->initiator_task_tag,
                         .numbers = link->wire->numbers(),
                         .exp_data_sn = data_sn},
                        bhs);
    session->tasks.erase(command->initiator_task_tag);
    return bhs;
  });
}

Task<void> ModelTarget::run_command(SessionRef session, TaskRef task) {
  const auto command = parse_scsi_command(task->command.bhs);
  co_await pause();
  bool alive = true;
  if (command->write) alive = co_await gather(session, task);
  if (alive && command->write) {
    co_await pause();
    // A lost connection alone does not stop it.
    alive = !task->terminated;
    const std::uint64_t at = big_endian<std::uint64_t>(command->cdb, 2) * block_bytes_;
    if (alive) {
      std::ranges::copy(task->data, store_.begin() + static_cast<std::ptrdiff_t>(at));
      co_await pause();
    }
  }
  if (alive && !task->terminated && command->read) {
    co_await send_read(session, task);
  } else if (alive && !task->terminated) {
    co_await send(session, task->link, [&, link = task->link] {
      Bhs bhs;
      write_scsi_response(
          {.initiator_task_tag = command->initiator_task_tag, .numbers = link->wire->numbers()},
          bhs);
      session->tasks.erase(command->initiator_task_tag);
      return bhs;
    });
  }
  const auto still = session->tasks.find(command->initiator_task_tag);
  if (still != session->tasks.end() && still->second == task) session->tasks.erase(still);
  gate_.leave();
}

// --- Everything else
// -------------------------------------------------------------------------------

Task<void> ModelTarget::manage(SessionRef session, LinkRef link, Pdu pdu) {
  const auto request = parse_task_management_request(pdu.bhs);
  const bool one = request->function == iscsi::TaskManagementFunction::kAbortTask;
  // Section 4.2.3.3 b): every command that it acts on has to be here.
  while (link->open && !one && serial_less(session->exp_cmd_sn, request->cmd_sn)) {
    co_await Executor::current().sleep_for(std::chrono::milliseconds(1));
  }
  for (auto& [tag, task] : session->tasks) {
    if (one && tag != request->referenced_task_tag) continue;
    if (!serial_less(cmd_sn_of(task->command.bhs), request->cmd_sn)) continue;
    task->terminated = true;
    task->arrived.notify_all();
  }
  co_await pause();
  co_await send(session, link, [&] {
    Bhs bhs;
    write_task_management_response(
        {.initiator_task_tag = request->initiator_task_tag, .numbers = link->wire->numbers()}, bhs);
    return bhs;
  });
  gate_.leave();
}

Task<void> ModelTarget::log_out(SessionRef session, LinkRef link, Pdu pdu) {
  const auto request = parse_logout_request(pdu.bhs);
  ++logouts_;
  co_await pause();
  const bool whole = request->reason == LogoutReason::kCloseSession;
  const bool known = whole || session->links.contains(request->cid);
  const bool own = whole || request->cid == link->cid;
  if (!whole && !own) end_link(*session, request->cid);
  if (own) {
    for (auto& [tag, task] : session->tasks) {
      if (!whole && task->link != link) continue;
      task->terminated = true;
      task->arrived.notify_all();
    }
  }
  co_await send(session, link, [&] {
    Bhs bhs;
    write_logout_response({.result = known ? LogoutResult::kClosed : LogoutResult::kCidNotFound,
                           .initiator_task_tag = request->initiator_task_tag,
                           .numbers = link->wire->numbers()},
                          bhs);
    return bhs;
  });
  co_await Executor::current().sleep_for(std::chrono::milliseconds(1));
  if (whole) {
    while (!session->links.empty()) end_link(*session, session->links.begin()->first);
    sessions_.erase(session->tsih);
  } else if (own && session->links.contains(link->cid) && session->links[link->cid] == link) {
    end_link(*session, link->cid);
  }
  gate_.leave();
}

Task<void> ModelTarget::answer_nop(SessionRef session, LinkRef link, Pdu pdu) {
  const auto nop = parse_nop_out(pdu.bhs);
  if (nop->initiator_task_tag != kReservedTag) {
    const auto size = static_cast<std::uint32_t>(pdu.data.size());
    co_await send(
        session, link,
        [&] {
          Bhs bhs;
          write_nop_in({.data_segment_length = size,
                        .initiator_task_tag = nop->initiator_task_tag,
                        .numbers = link->wire->numbers()},
                       bhs);
          return bhs;
        },
        pdu.data);
  }
  gate_.leave();
}

}  // namespace sandbay::simtest
