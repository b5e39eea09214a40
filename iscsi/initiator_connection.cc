// The life of an initiator's connection in the full feature phase, and of the tasks on it. Framing,
// requests and responses stand in files of their own.
#include "iscsi/initiator_connection.h"

#include <algorithm>
#include <cassert>

#include "iscsi/initiator_crossing.h"

namespace sandbay::iscsi {
InitiatorConnection::InitiatorConnection(const Place& place)
    : place_(place), outgoing_(place.executor, *this), tasks_(place.slot_mask + 1) {
  ended_message_.connection = this;
  ended_message_.run = [](Message& message) {
    InitiatorConnection& self = *static_cast<EndedMessage&>(message).connection;
    self.place_.events.connection_ended(self);
  };
}

InitiatorConnection::~InitiatorConnection() {
  assert(stream_ == nullptr || ended_);
  assert(!receiving_ && !outgoing_.busy());
}

Error InitiatorConnection::open(Opening opening) {
  assert(stream_ == nullptr && &Executor::current() == &place_.executor);
  const std::size_t wanted = std::max(place_.receive_buffer_bytes, opening.rest.size());
  buffer_ = place_.executor.buffers().try_allocate_contiguous(
      std::min(wanted, BufferPool::kLargestBlock));
  if (buffer_.empty()) return Error::kNoMemory;
  assert(opening.rest.size() <= buffer_.byte_count());
  std::ranges::copy(opening.rest, buffer_.data());
  end_ = opening.rest.size();

  stream_ = std::move(opening.stream);
  limits_ = opening.limits;
  exp_stat_sn_ = opening.exp_stat_sn;
  if (opening.interferences != nullptr) {
    interference_ = opening.interferences->of_connection(opening.facts);
  }
  outgoing_.open(*stream_, limits_.header_digest, limits_.data_digest,
                 std::move(opening.misbehaviour), opening.pdus_before, interference_.get());
  receiving_ = true;
  spawn(receive_loop());
  return Error::kNone;
}

Task<void> InitiatorConnection::receive_loop() {
  std::array<IoSlice, 8> slices;
  while (true) {
    parse();
    if (failing_) break;
    if (framing_ == Framing::kHeld) [[unlikely]] {
      co_await wait_by_rule();
      if (failing_) break;
      continue;
    }
    if (outgoing_.reading_stopped()) {
      co_await place_.executor.sleep_for(std::chrono::milliseconds(10));
      if (failing_) break;
      continue;
    }
    const std::size_t count = receive_slices(slices);
    const Result<std::size_t> got = co_await stream_->receive(std::span(slices).first(count));
    if (failing_) break;
    if (!got.has_value() || *got == 0) {
      fail(logged_out_ ? "logged out" : got.has_value() ? "closed by the target" : "reset");
      break;
    }
    received(*got);
  }
  receiving_ = false;
  sink_ = nullptr;
  finish_if_idle();
}

// Nothing new is sent or received any more; finish_if_idle() does the rest when the operations in
// flight have ended.
void InitiatorConnection::fail(const char* why) {
  if (failing_) return;
  failing_ = true;
  counters_.why_ended = why;
  held_.notify_all();
  outgoing_.close();
  if (stream_ != nullptr) stream_->shutdown();
}

void InitiatorConnection::shut_down(bool reset, const char* why) {
  if (reset && !failing_ && stream_ != nullptr) stream_->reset();
  fail(why);
  if (stream_ == nullptr) finish_if_idle();
}

void InitiatorConnection::finish_if_idle() {
  if (!failing_ || receiving_ || outgoing_.busy() || ended_) return;
  ended_ = true;
  stream_.reset();
  buffer_ = Buffer();
  for (InitiatorTask* task : tasks_) {
    if (task == nullptr) continue;
    if (!task->answered) task->lost = true;
    end_task(*task);
  }
  place_.session_home.send(ended_message_);
}

void InitiatorConnection::hand_over(InitiatorTask& task) {
  task.connection = this;
  task.crossing.task = &task;
  task.answered = false;
  task.lost = false;
  task.aborting = false;
  task.rejected = false;
  task.sends_in_flight = 0;
  if (&place_.executor == &place_.session_home) return start(task);
  task.crossing.run = [](Message& message) {
    InitiatorTask& arrived = *static_cast<InitiatorTask::Crossing&>(message).task;
    arrived.connection->start(arrived);
  };
  place_.executor.send(task.crossing);
}

void InitiatorConnection::start(InitiatorTask& task) {
  if (failing_) {
    task.lost = true;
    deliver(task);
    return;
  }
  InitiatorTask*& slot = tasks_[task.itt & place_.slot_mask];
  assert(slot == nullptr);
  slot = &task;
  if (task.kind == InitiatorTask::Kind::kScsi) {
    send_command(static_cast<InitiatorCommand&>(task));
  } else {
    send_control(static_cast<InitiatorControlTask&>(task));
  }
}

InitiatorTask* InitiatorConnection::find(std::uint32_t itt) const {
  InitiatorTask* task = tasks_[itt & place_.slot_mask];
  if (task == nullptr || task->itt != itt || task->answered) return nullptr;
  return task;
}

// Its outcome is known. It goes home as soon as nothing names its memory.
void InitiatorConnection::end_task(InitiatorTask& task) {
  if (!task.lost) task.answered = true;
  if (task.sends_in_flight != 0 || sink_ == &task) return;
  tasks_[task.itt & place_.slot_mask] = nullptr;
  deliver(task);
}

void InitiatorConnection::sent(InitiatorTask& task) {
  if (task.sends_in_flight == 0 && task.answered && sink_ != &task) end_task(task);
}

void InitiatorConnection::deliver(InitiatorTask& task) {
  if (&place_.executor == &place_.session_home) return place_.events.task_ended(task);
  task.crossing.run = [](Message& message) {
    InitiatorTask& arrived = *static_cast<InitiatorTask::Crossing&>(message).task;
    arrived.connection->place_.events.task_ended(arrived);
  };
  place_.session_home.send(task.crossing);
}

void InitiatorConnection::drop_commands(std::optional<std::uint64_t> lun,
                                        std::uint32_t before_cmd_sn) {
  for (InitiatorTask* task : tasks_) {
    if (task == nullptr || task->answered || task->kind != InitiatorTask::Kind::kScsi) continue;
    const auto& command = static_cast<const InitiatorCommand&>(*task);
    if (lun.has_value() && command.lun != *lun) continue;
    if (!serial_less(command.cmd_sn, before_cmd_sn)) continue;
    task->aborting = true;
    end_task(*task);
  }
}

void InitiatorConnection::drop_tag(std::uint32_t itt) {
  InitiatorTask* task = find(itt);
  if (task == nullptr) return;
  task->aborting = true;
  end_task(*task);
}

void InitiatorConnection::note_window(const StatusNumbers& numbers) {
  if (serial_less(numbers.max_cmd_sn + 1, numbers.exp_cmd_sn)) return;
  if (told_exp_cmd_sn_ == numbers.exp_cmd_sn && told_max_cmd_sn_ == numbers.max_cmd_sn) return;
  told_exp_cmd_sn_ = numbers.exp_cmd_sn;
  told_max_cmd_sn_ = numbers.max_cmd_sn;
  InitiatorConnectionEvents& events = place_.events;
  if (&place_.executor == &place_.session_home) {
    return events.window_moved(numbers.exp_cmd_sn, numbers.max_cmd_sn);
  }
  call_on(place_.session_home,
          [&events, numbers] { events.window_moved(numbers.exp_cmd_sn, numbers.max_cmd_sn); });
}

}  // namespace sandbay::iscsi
