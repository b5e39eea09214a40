// What a target device answers where no logical unit stands: for LUNs that lead nowhere
// (SPC-4 6.6.2 and SAM-5 5.11), and for the REPORT LUNS well known logical unit (SPC-4 clause 8).
//
// These commands run on the session's executor, outside of any task set; they can be aborted while
// a slow peer takes their data.
#include <algorithm>
#include <array>

#include "runtime/buffer.h"
#include "runtime/byte_order.h"
#include "scsi/logical_unit.h"
#include "scsi/task_router.h"

namespace sandbay::scsi {
namespace {

constexpr std::uint8_t kRequestSense = 0x03;
constexpr std::uint8_t kInquiry = 0x12;
constexpr std::uint8_t kTestUnitReady = 0x00;
constexpr std::uint8_t kReportLuns = 0xA0;

Outcome refusal(SenseKey key, Additional additional, std::optional<std::uint16_t> byte = {}) {
  Sense sense{.key = key, .additional = additional};
  if (byte) sense.field = Sense::FieldPointer{.in_cdb = true, .byte = *byte};
  return Outcome{.status = Status::kCheckCondition, .sense = SenseData::encode(sense, false)};
}

Outcome invalid_field(std::uint16_t byte) {
  return refusal(SenseKey::kIllegalRequest, Additional::kInvalidFieldInCdb, byte);
}

}  // namespace

Task<Outcome> TaskRouter::send_parameters(Command& command, std::vector<std::byte> bytes,
                                          std::uint64_t allocation_length) {
  const std::uint64_t available = std::min<std::uint64_t>(bytes.size(), allocation_length);
  const auto wanted =
      static_cast<std::size_t>(std::min<std::uint64_t>(available, command.data_in_length));
  if (wanted != 0) {
    BufferList data = co_await Executor::current().buffers().allocate(wanted);
    data.copy_from(std::span(bytes).first(wanted));
    const Error error = co_await command.send_data_in(std::move(data));
    if (error != Error::kNone) {
      co_return refusal(SenseKey::kAbortedCommand, Additional::kDataPhaseError);
    }
  }
  co_return Outcome{.data_in_bytes = available};
}

// PERIPHERAL QUALIFIER 011b with device type 1Fh: no unit can be here; 1Eh: a well known unit.
Task<Outcome> TaskRouter::answer_inquiry(Command& command, bool well_known) {
  const bool vital = (command.cdb[1] & std::byte{0x01}) != std::byte{0};
  if ((command.cdb[1] & std::byte{0xFE}) != std::byte{0}) co_return invalid_field(1);
  if (command.cdb[2] != std::byte{0}) co_return invalid_field(2);
  std::vector<std::byte> data(vital ? 5 : 36);
  data[0] = well_known ? std::byte{0x1E} : std::byte{0x7F};
  if (vital) {
    data[3] = std::byte{1};  // The list of pages, which is its only member.
  } else {
    data[2] = std::byte{0x06};
    data[3] = std::byte{0x12};
    data[4] = static_cast<std::byte>(data.size() - 5);
    data[7] = std::byte{0x02};
    std::ranges::fill(std::span(data).subspan(8, 28), std::byte{' '});
    constexpr std::string_view kVendor = "SANDBAY";
    std::ranges::copy(std::as_bytes(std::span(kVendor)), data.begin() + 8);
  }
  const auto allocation_length = big_endian<std::uint16_t>(command.cdb, 3);
  co_return co_await send_parameters(command, std::move(data), allocation_length);
}

Task<Outcome> TaskRouter::answer_report_luns(Command& command) {
  const auto select = std::to_integer<std::uint8_t>(command.cdb[2]);
  const auto allocation_length = big_endian<std::uint32_t>(command.cdb, 6);
  if (select > 2) co_return invalid_field(2);
  if (allocation_length < 16) co_return invalid_field(6);
  luns_were_reported(static_cast<const RoutedNexus*>(command.nexus)->id());
  co_return co_await send_parameters(command, reported_luns(select), allocation_length);
}

Task<Outcome> TaskRouter::answer_request_sense(Command& command, bool well_known) {
  const bool descriptors = (command.cdb[1] & std::byte{0x01}) != std::byte{0};
  Sense sense;
  if (!well_known) {
    sense.key = SenseKey::kIllegalRequest;
    sense.additional = Additional::kLogicalUnitNotSupported;
  }
  const SenseData encoded = SenseData::encode(sense, descriptors);
  std::vector<std::byte> data(encoded.bytes().begin(), encoded.bytes().end());
  const auto allocation_length = std::to_integer<std::uint64_t>(command.cdb[4]);
  co_return co_await send_parameters(command, std::move(data), allocation_length);
}

Task<void> TaskRouter::answer(Command& command, bool well_known) {
  View& here = view();
  command.nexus_id = static_cast<const RoutedNexus*>(command.nexus)->id();
  here.answering.push_back(command);
  const auto opcode = std::to_integer<std::uint8_t>(command.cdb[0]);
  Outcome outcome;
  if (opcode == kInquiry) {
    outcome = co_await answer_inquiry(command, well_known);
  } else if (opcode == kReportLuns && (well_known || command.lun == 0)) {
    outcome = co_await answer_report_luns(command);
  } else if (opcode == kRequestSense) {
    outcome = co_await answer_request_sense(command, well_known);
  } else if (!well_known) {
    outcome = refusal(SenseKey::kIllegalRequest, Additional::kLogicalUnitNotSupported);
  } else if (opcode != kTestUnitReady) {
    outcome = refusal(SenseKey::kIllegalRequest, Additional::kInvalidOperationCode);
  }
  here.answering.remove(command);
  if (command.aborted) outcome = Outcome{.silent = true};
  if (!command.completed) {
    command.completed = true;
    command.complete(outcome);
  }
  command.release();
  here.answered.notify_all();
}

// Their handlers wait for nothing but the transport, which ends its calls when it is cancelled.
Task<bool> TaskRouter::abort_answering(std::uint64_t nexus_id, std::optional<std::uint64_t> tag) {
  View& here = view();
  const TimePoint deadline = Executor::current().now() + kAbortPatience;
  bool found = false;
  const auto matches = [nexus_id, tag](const Command& command) {
    return command.nexus_id == nexus_id && (!tag || command.tag == *tag);
  };
  Command* next = nullptr;
  for (Command* each = here.answering.first(); each != nullptr; each = next) {
    next = each->next_in_set;
    if (!matches(*each)) continue;
    found = true;
    each->aborted = true;
    each->cancellation.cancel();
  }
  for (;;) {
    bool left = false;
    for (Command* each = here.answering.first(); each != nullptr; each = each->next_in_set) {
      if (each->aborted && !each->completed && matches(*each)) left = true;
    }
    if (!left) co_return found;
    const bool ended = co_await here.answered.wait_until(deadline);
    if (!ended) break;
  }
  for (Command* each = here.answering.first(); each != nullptr; each = each->next_in_set) {
    if (!each->aborted || each->completed || !matches(*each)) continue;
    each->completed = true;
    each->complete(Outcome{.silent = true});
  }
  co_return found;
}

}  // namespace sandbay::scsi
