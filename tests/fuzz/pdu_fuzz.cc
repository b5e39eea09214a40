// Fuzzes the PDU decoders: the input is a BHS and what follows it. Every parser sees every header,
// whatever its opcode. What a parser takes, its writer must be able to write, and the result must
// parse to the same PDU again.
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "iscsi/digest.h"
#include "iscsi/pdu.h"

namespace sandbay::iscsi {
namespace {

void require(bool held) {
  if (!held) std::abort();
}

template <class Parse, class Write>
void try_one(BhsView bhs, Parse parse, Write write) {
  const auto parsed = parse(bhs);
  if (!parsed.has_value()) return;
  Bhs again;
  write(*parsed, again);
  const auto second = parse(again);
  require(second.has_value() && *second == *parsed);
}

void try_command(BhsView bhs, std::span<const std::byte> ahs) {
  const auto parsed = parse_scsi_command(bhs, ahs);
  if (!parsed.has_value()) return;
  require(parsed->extended_cdb.size() <= kMaximumAhsBytes);
  Bhs again;
  write_scsi_command(*parsed, again);
  std::vector<std::byte> ahs_again(ahs_byte_count(*parsed));
  write_ahs(*parsed, ahs_again);
  const auto second = parse_scsi_command(again, ahs_again);
  require(second.has_value() && second->cdb == parsed->cdb && second->lun == parsed->lun &&
          std::ranges::equal(second->extended_cdb, parsed->extended_cdb));
}

void run(std::span<const std::byte> input) {
  if (input.size() < kBhsBytes) return;
  const BhsView bhs = input.first<kBhsBytes>();
  const auto rest = input.subspan(kBhsBytes);
  const std::size_t ahs_bytes = std::min<std::size_t>(ahs_byte_count(bhs), rest.size());
  try_command(bhs, rest.first(ahs_bytes));
  require(header_digest(bhs, rest.first(ahs_bytes)) == crc32c(input.first(kBhsBytes + ahs_bytes)));
  require(bytes_after_bhs(bhs, true, true) <= kMaximumAhsBytes + (1U << 24U) + 8);
  try_one(bhs, parse_task_management_request, write_task_management_request);
  try_one(bhs, parse_data_out, write_data_out);
  try_one(bhs, parse_text_request, write_text_request);
  try_one(bhs, parse_logout_request, write_logout_request);
  try_one(bhs, parse_nop_out, write_nop_out);
  try_one(bhs, parse_scsi_response, write_scsi_response);
  try_one(bhs, parse_task_management_response, write_task_management_response);
  try_one(bhs, parse_data_in, write_data_in);
  try_one(bhs, parse_ready_to_transfer, write_ready_to_transfer);
  try_one(bhs, parse_async_message, write_async_message);
  try_one(bhs, parse_text_response, write_text_response);
  try_one(bhs, parse_login_response, write_login_response);
  try_one(bhs, parse_logout_response, write_logout_response);
  try_one(bhs, parse_reject, write_reject);
  try_one(bhs, parse_nop_in, write_nop_in);
  const LoginRequest login = parse_login_request(bhs);
  Bhs again;
  write_login_request(login, again);
  require(parse_login_request(again) == login);
}

}  // namespace
}  // namespace sandbay::iscsi

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sandbay::iscsi::run(std::as_bytes(std::span(data, size)));
  return 0;
}
