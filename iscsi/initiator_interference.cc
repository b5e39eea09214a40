// PDUs of the target that a rule loses, delays or damages at our initiator.
#include <algorithm>
#include <utility>

#include "iscsi/bent_pdus.h"
#include "iscsi/initiator_connection.h"

namespace sandbay::iscsi {

// A PDU is complete. False: it has to wait.
bool InitiatorConnection::judge_pdu() {
  const PduInterference::Verdict verdict =
      interference_->judge(bhs_, {.data = data_bytes_ != 0,
                                  .header_digest = limits_.header_digest,
                                  .data_digest = limits_.data_digest && data_bytes_ != 0});
  if (verdict.delay <= Duration::zero()) {
    carry_out(verdict.fate);
    return true;
  }
  framing_ = Framing::kHeld;
  held_until_ = place_.executor.now() + verdict.delay;
  held_fate_ = verdict.fate;
  return false;
}

Task<void> InitiatorConnection::wait_by_rule() {
  Executor& executor = place_.executor;
  while (!failing_ && executor.now() < held_until_ && !interference_->quiet()) {
    (void)co_await held_.wait_until(std::min(held_until_, executor.now() + kLookAtRules));
  }
  if (failing_) co_return;
  framing_ = Framing::kHeader;
  carry_out(held_fate_);
}

void InitiatorConnection::carry_out(PduInterference::Fate fate) {
  using Fate = PduInterference::Fate;
  switch (fate) {
    case Fate::kPass:
      return handle_pdu();
    case Fate::kLose:
      return forget_pdu();
    case Fate::kTwice:
      handle_pdu();
      if (!failing_) handle_pdu();
      return;
    case Fate::kHeaderDigest:
      ++counters_.header_digest_errors;
      return fail("header digest error");
    case Fate::kDamaged:
      if (!limits_.data_digest) {
        alter_data();
        return handle_pdu();
      }
      [[fallthrough]];
    case Fate::kDataDigest:
      ++counters_.data_digest_errors;
      return fail("data digest error");
    case Fate::kAltered:
      alter_data();
      return handle_pdu();
    case Fate::kReset:
      stream_->reset();
      [[fallthrough]];
    case Fate::kCut:
    case Fate::kClose:
      return fail("a fault rule broke it");
  }
}

// Nothing names the memory of its task any more.
void InitiatorConnection::forget_pdu() {
  InitiatorCommand* const sink = std::exchange(sink_, nullptr);
  if (sink != nullptr && sink->answered) end_task(*sink);
}

void InitiatorConnection::alter_data() {
  const std::size_t at = data_bytes_ / 2;
  if (sink_ == nullptr) {
    data_[at] ^= std::byte{1};
    return;
  }
  invert_bit(sink_->data_in, sink_offset_ + at);
}

}  // namespace sandbay::iscsi
