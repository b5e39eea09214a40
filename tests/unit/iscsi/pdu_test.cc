// PDU codecs: the layouts of RFC 7143 section 11 byte by byte for a few, and for all of them that
// parsing gives back what was written, and that no header is refused or accepted against the text.
#include <rapidcheck.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "iscsi/pdu.h"

namespace sandbay::iscsi {
namespace {

template <class T>
T any() {
  return *rc::gen::arbitrary<T>();
}
std::uint32_t any_length() { return *rc::gen::inRange<std::uint32_t>(0, 1U << 24U); }
StatusNumbers any_numbers() {
  return {.stat_sn = any<std::uint32_t>(),
          .exp_cmd_sn = any<std::uint32_t>(),
          .max_cmd_sn = any<std::uint32_t>()};
}
// A tag that is not the reserved one.
std::uint32_t any_tag() { return *rc::gen::inRange<std::uint32_t>(0, 0xffffffffU); }
Isid any_isid() {
  Isid isid;
  for (std::byte& byte : isid.bytes) byte = static_cast<std::byte>(any<std::uint8_t>());
  return isid;
}
Residual any_residual() {
  return *rc::gen::element(Residual::kNone, Residual::kUnderflow, Residual::kOverflow);
}

Bhs bhs_of(std::initializer_list<unsigned> bytes) {
  Bhs bhs{};
  std::size_t index = 0;
  for (const unsigned byte : bytes) bhs[index++] = static_cast<std::byte>(byte);
  return bhs;
}

// Writes over garbage, so that a byte the writer forgets is seen.
template <class Pdu, class Write>
Bhs written(const Pdu& pdu, Write write) {
  Bhs dirty;
  dirty.fill(std::byte{0xa5});
  write(pdu, dirty);
  Bhs clean{};
  write(pdu, clean);
  RC_ASSERT(dirty == clean);
  return clean;
}

template <class Pdu, class Write, class Parse>
void round_trip(const Pdu& pdu, Opcode opcode, Write write, Parse parse) {
  const Bhs bhs = written(pdu, write);
  RC_ASSERT(opcode_of(bhs) == opcode);
  const auto parsed = parse(bhs);
  RC_ASSERT(parsed.has_value());
  RC_ASSERT(*parsed == pdu);
}

}  // namespace

TEST_CASE("SCSI Command has the layout of section 11.3", "[iscsi][pdu]") {
  ScsiCommand command{.immediate = true,
                      .final = true,
                      .write = true,
                      .attribute = AttributeCode::kHeadOfQueue,
                      .priority = 5,
                      .data_segment_length = 0x010203,
                      .lun = 0x0102030405060708ULL,
                      .initiator_task_tag = 0x11121314,
                      .expected_data_transfer_length = 0x21222324,
                      .cmd_sn = 0x31323334,
                      .exp_stat_sn = 0x41424344};
  command.cdb[0] = std::byte{0x2a};
  command.cdb[15] = std::byte{0x99};
  Bhs bhs;
  write_scsi_command(command, bhs);
  const Bhs expected =
      bhs_of({0x41, 0xa3, 0x50, 0x00, 0x00, 0x01, 0x02, 0x03,  //
              0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08,  //
              0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24,  //
              0x31, 0x32, 0x33, 0x34, 0x41, 0x42, 0x43, 0x44,  //
              0x2a, 0,    0,    0,    0,    0,    0,    0,    0, 0, 0, 0, 0, 0, 0, 0x99});
  CHECK(bhs == expected);
  CHECK(is_immediate(bhs));
  CHECK(data_segment_length(bhs) == 0x010203);
  CHECK(cmd_sn_of(bhs) == 0x31323334);
  CHECK(exp_stat_sn_of(bhs) == 0x41424344);
}

TEST_CASE("Data-In with status has the layout of section 11.7", "[iscsi][pdu]") {
  const DataIn data{.final = true,
                    .has_status = true,
                    .residual = Residual::kUnderflow,
                    .status = 0x08,
                    .data_segment_length = 512,
                    .initiator_task_tag = 7,
                    .numbers = {.stat_sn = 1, .exp_cmd_sn = 2, .max_cmd_sn = 3},
                    .data_sn = 4,
                    .buffer_offset = 5,
                    .residual_count = 6};
  Bhs bhs;
  write_data_in(data, bhs);
  const Bhs expected =
      bhs_of({0x25, 0x83, 0, 0x08, 0,    0,    0x02, 0x00, 0, 0, 0, 0, 0, 0, 0, 0,  //
              0,    0,    0, 7,    0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 2,
              0,    0,    0, 3,    0,    0,    0,    4,    0, 0, 0, 5, 0, 0, 0, 6});
  CHECK(bhs == expected);
}

TEST_CASE("Login Request and Response have the layouts of 11.12 and 11.13", "[iscsi][pdu]") {
  LoginRequest request{.transit = true,
                       .current_stage = 1,
                       .next_stage = 3,
                       .data_segment_length = 9,
                       .tsih = 0x0708,
                       .initiator_task_tag = 0x0a0b0c0d,
                       .cid = 0x1112,
                       .cmd_sn = 0x21222324,
                       .exp_stat_sn = 0x31323334};
  for (unsigned index = 0; index < 6; ++index) request.isid.bytes[index] = std::byte(index + 1);
  Bhs bhs;
  write_login_request(request, bhs);
  CHECK(bhs == bhs_of({0x43, 0x87, 0,    0,    0,    0,    0,    9,   1, 2, 3, 4, 5, 6, 7, 8,  //
                       0x0a, 0x0b, 0x0c, 0x0d, 0x11, 0x12, 0,    0,                            //
                       0x21, 0x22, 0x23, 0x24, 0x31, 0x32, 0x33, 0x34}));
  LoginResponse response{.current_stage = 0,
                         .version_maximum = 0,
                         .isid = request.isid,
                         .initiator_task_tag = 1,
                         .status = LoginStatus::kSessionDoesNotExist};
  write_login_response(response, bhs);
  CHECK(opcode_of(bhs) == Opcode::kLoginResponse);
  CHECK(bhs[36] == std::byte{0x02});
  CHECK(bhs[37] == std::byte{0x0a});
  CHECK(request.isid.to_string() == "010203040506");
}

TEST_CASE("Initiator PDUs come back as they were written", "[iscsi][pdu]") {
  REQUIRE(rc::check("Task Management Function Request", [] {
    round_trip(TaskManagementRequest{.immediate = any<bool>(),
                                     .function = static_cast<TaskManagementFunction>(
                                         *rc::gen::inRange(0, 128)),
                                     .lun = any<std::uint64_t>(),
                                     .initiator_task_tag = any_tag(),
                                     .referenced_task_tag = any<std::uint32_t>(),
                                     .cmd_sn = any<std::uint32_t>(),
                                     .exp_stat_sn = any<std::uint32_t>(),
                                     .ref_cmd_sn = any<std::uint32_t>(),
                                     .exp_data_sn = any<std::uint32_t>()},
               Opcode::kTaskManagementRequest, write_task_management_request,
               parse_task_management_request);
  }));
  REQUIRE(rc::check("Data-Out", [] {
    round_trip(DataOut{.final = any<bool>(),
                       .data_segment_length = any_length(),
                       .lun = any<std::uint64_t>(),
                       .initiator_task_tag = any<std::uint32_t>(),
                       .target_transfer_tag = any<std::uint32_t>(),
                       .exp_stat_sn = any<std::uint32_t>(),
                       .data_sn = any<std::uint32_t>(),
                       .buffer_offset = any<std::uint32_t>()},
               Opcode::kDataOut, write_data_out, parse_data_out);
  }));
  REQUIRE(rc::check("Text Request", [] {
    const bool final = any<bool>();
    round_trip(TextRequest{.immediate = any<bool>(),
                           .final = final,
                           .continues = !final && any<bool>(),
                           .data_segment_length = any_length(),
                           .lun = any<std::uint64_t>(),
                           .initiator_task_tag = any_tag(),
                           .target_transfer_tag = any<std::uint32_t>(),
                           .cmd_sn = any<std::uint32_t>(),
                           .exp_stat_sn = any<std::uint32_t>()},
               Opcode::kTextRequest, write_text_request, parse_text_request);
  }));
  REQUIRE(rc::check("Logout Request", [] {
    round_trip(LogoutRequest{.immediate = any<bool>(),
                             .reason = static_cast<LogoutReason>(*rc::gen::inRange(0, 3)),
                             .initiator_task_tag = any_tag(),
                             .cid = any<std::uint16_t>(),
                             .cmd_sn = any<std::uint32_t>(),
                             .exp_stat_sn = any<std::uint32_t>()},
               Opcode::kLogoutRequest, write_logout_request, parse_logout_request);
  }));
}

TEST_CASE("Further initiator PDUs come back as they were written", "[iscsi][pdu]") {
  REQUIRE(rc::check("NOP-Out", [] {
    round_trip(NopOut{.immediate = any<bool>(),
                      .data_segment_length = any_length(),
                      .lun = any<std::uint64_t>(),
                      .initiator_task_tag = any_tag(),
                      .target_transfer_tag = any<std::uint32_t>(),
                      .cmd_sn = any<std::uint32_t>(),
                      .exp_stat_sn = any<std::uint32_t>()},
               Opcode::kNopOut, write_nop_out, parse_nop_out);
  }));
  REQUIRE(rc::check("Login Request", [] {
    const LoginRequest request{.transit = any<bool>(),
                               .continues = any<bool>(),
                               .current_stage = static_cast<std::uint8_t>(*rc::gen::inRange(0, 4)),
                               .next_stage = static_cast<std::uint8_t>(*rc::gen::inRange(0, 4)),
                               .version_maximum = any<std::uint8_t>(),
                               .version_minimum = any<std::uint8_t>(),
                               .data_segment_length = any_length(),
                               .isid = any_isid(),
                               .tsih = any<std::uint16_t>(),
                               .initiator_task_tag = any<std::uint32_t>(),
                               .cid = any<std::uint16_t>(),
                               .cmd_sn = any<std::uint32_t>(),
                               .exp_stat_sn = any<std::uint32_t>()};
    const Bhs bhs = written(request, write_login_request);
    RC_ASSERT(parse_login_request(bhs) == request);
    RC_ASSERT(is_immediate(bhs));
  }));
}

TEST_CASE("Target PDUs come back as they were written", "[iscsi][pdu]") {
  REQUIRE(rc::check("SCSI Response", [] {
    round_trip(ScsiResponse{.response = ServiceResponse::kCompletedAtTarget,
                            .status = any<std::uint8_t>(),
                            .residual = any_residual(),
                            .bidirectional_read_residual = any_residual(),
                            .status_qualifier = any<std::uint16_t>(),
                            .data_segment_length = any_length(),
                            .initiator_task_tag = any<std::uint32_t>(),
                            .snack_tag = any<std::uint32_t>(),
                            .numbers = any_numbers(),
                            .exp_data_sn = any<std::uint32_t>(),
                            .bidirectional_read_residual_count = any<std::uint32_t>(),
                            .residual_count = any<std::uint32_t>()},
               Opcode::kScsiResponse, write_scsi_response, parse_scsi_response);
  }));
  REQUIRE(rc::check("Task Management Function Response", [] {
    round_trip(
        TaskManagementResponse{.result = static_cast<TaskManagementResult>(any<std::uint8_t>()),
                               .additional_information = any_length(),
                               .initiator_task_tag = any<std::uint32_t>(),
                               .numbers = any_numbers()},
        Opcode::kTaskManagementResponse, write_task_management_response,
        parse_task_management_response);
  }));
  REQUIRE(rc::check("Data-In", [] {
    const bool status = any<bool>();
    round_trip(DataIn{.final = status || any<bool>(),
                      .acknowledge = any<bool>(),
                      .has_status = status,
                      .residual = status ? any_residual() : Residual::kNone,
                      .status = status ? any<std::uint8_t>() : std::uint8_t{0},
                      .data_segment_length = any_length(),
                      .lun = any<std::uint64_t>(),
                      .initiator_task_tag = any<std::uint32_t>(),
                      .target_transfer_tag = any<std::uint32_t>(),
                      .numbers = any_numbers(),
                      .data_sn = any<std::uint32_t>(),
                      .buffer_offset = any<std::uint32_t>(),
                      .residual_count = status ? any<std::uint32_t>() : 0},
               Opcode::kDataIn, write_data_in, parse_data_in);
  }));
}

TEST_CASE("R2T, messages and text come back as they were written", "[iscsi][pdu]") {
  REQUIRE(rc::check("Ready To Transfer", [] {
    round_trip(ReadyToTransfer{.lun = any<std::uint64_t>(),
                               .initiator_task_tag = any<std::uint32_t>(),
                               .target_transfer_tag = any_tag(),
                               .numbers = any_numbers(),
                               .r2t_sn = any<std::uint32_t>(),
                               .buffer_offset = any<std::uint32_t>(),
                               .desired_data_transfer_length =
                                   *rc::gen::inRange<std::uint32_t>(1, 0xffffffffU)},
               Opcode::kReadyToTransfer, write_ready_to_transfer, parse_ready_to_transfer);
  }));
  REQUIRE(rc::check("Asynchronous Message", [] {
    round_trip(AsyncMessage{.data_segment_length = any_length(),
                            .lun = any<std::uint64_t>(),
                            .numbers = any_numbers(),
                            .event = static_cast<AsyncEventCode>(any<std::uint8_t>()),
                            .vendor_code = any<std::uint8_t>(),
                            .parameter1 = any<std::uint16_t>(),
                            .parameter2 = any<std::uint16_t>(),
                            .parameter3 = any<std::uint16_t>()},
               Opcode::kAsyncMessage, write_async_message, parse_async_message);
  }));
  REQUIRE(rc::check("Text Response", [] {
    const bool final = any<bool>();
    round_trip(TextResponse{.final = final,
                            .continues = !final && any<bool>(),
                            .data_segment_length = any_length(),
                            .lun = any<std::uint64_t>(),
                            .initiator_task_tag = any<std::uint32_t>(),
                            .target_transfer_tag = any<std::uint32_t>(),
                            .numbers = any_numbers()},
               Opcode::kTextResponse, write_text_response, parse_text_response);
  }));
}

TEST_CASE("Login, logout, Reject and NOP-In come back as they were written", "[iscsi][pdu]") {
  REQUIRE(rc::check("Login Response", [] {
    const bool transit = any<bool>();
    round_trip(LoginResponse{.transit = transit,
                             .continues = !transit && any<bool>(),
                             .current_stage = static_cast<std::uint8_t>(*rc::gen::inRange(0, 4)),
                             .next_stage = static_cast<std::uint8_t>(*rc::gen::inRange(0, 4)),
                             .version_maximum = any<std::uint8_t>(),
                             .version_active = any<std::uint8_t>(),
                             .data_segment_length = any_length(),
                             .isid = any_isid(),
                             .tsih = any<std::uint16_t>(),
                             .initiator_task_tag = any<std::uint32_t>(),
                             .numbers = any_numbers(),
                             .status = static_cast<LoginStatus>(any<std::uint16_t>())},
               Opcode::kLoginResponse, write_login_response, parse_login_response);
  }));
  REQUIRE(rc::check("Logout Response", [] {
    round_trip(LogoutResponse{.result = static_cast<LogoutResult>(any<std::uint8_t>()),
                              .initiator_task_tag = any<std::uint32_t>(),
                              .numbers = any_numbers(),
                              .time2wait = any<std::uint16_t>(),
                              .time2retain = any<std::uint16_t>()},
               Opcode::kLogoutResponse, write_logout_response, parse_logout_response);
  }));
  REQUIRE(rc::check("Reject", [] {
    round_trip(Reject{.reason = static_cast<RejectReason>(any<std::uint8_t>()),
                      .data_segment_length = any_length(),
                      .numbers = any_numbers(),
                      .data_sn = any<std::uint32_t>()},
               Opcode::kReject, write_reject, parse_reject);
  }));
  REQUIRE(rc::check("NOP-In", [] {
    round_trip(NopIn{.data_segment_length = any_length(),
                     .lun = any<std::uint64_t>(),
                     .initiator_task_tag = any<std::uint32_t>(),
                     .target_transfer_tag = any<std::uint32_t>(),
                     .numbers = any_numbers()},
               Opcode::kNopIn, write_nop_in, parse_nop_in);
  }));
}

TEST_CASE("SCSI Commands come back with their additional headers", "[iscsi][pdu]") {
  REQUIRE(rc::check("SCSI Command", [] {
    const auto spill = *rc::gen::container<std::vector<std::uint8_t>>(
        *rc::gen::inRange<std::size_t>(0, 245), rc::gen::arbitrary<std::uint8_t>());
    const bool read = any<bool>();
    const bool write = any<bool>();
    ScsiCommand command{.immediate = any<bool>(),
                        .final = !write || any<bool>(),
                        .read = read,
                        .write = write,
                        .attribute = static_cast<AttributeCode>(*rc::gen::inRange(0, 5)),
                        .priority = static_cast<std::uint8_t>(*rc::gen::inRange(0, 16)),
                        .data_segment_length = any_length(),
                        .lun = any<std::uint64_t>(),
                        .initiator_task_tag = any_tag(),
                        .expected_data_transfer_length = read || write ? any<std::uint32_t>() : 0,
                        .cmd_sn = any<std::uint32_t>(),
                        .exp_stat_sn = any<std::uint32_t>()};
    for (std::byte& byte : command.cdb) byte = static_cast<std::byte>(any<std::uint8_t>());
    command.extended_cdb = std::as_bytes(std::span(spill));
    if (read && write) command.bidirectional_read_length = any<std::uint32_t>();
    const Bhs bhs = written(command, write_scsi_command);
    std::vector<std::byte> ahs(ahs_byte_count(command), std::byte{0xa5});
    write_ahs(command, ahs);
    RC_ASSERT(ahs.size() == ahs_byte_count(bhs));
    const auto parsed = parse_scsi_command(bhs, ahs);
    RC_ASSERT(parsed.has_value());
    RC_ASSERT(parsed->cdb == command.cdb);
    RC_ASSERT(std::ranges::equal(parsed->extended_cdb, command.extended_cdb));
    RC_ASSERT(parsed->bidirectional_read_length == command.bidirectional_read_length);
    RC_ASSERT(parsed->attribute == command.attribute);
    RC_ASSERT(parsed->priority == command.priority);
    RC_ASSERT(parsed->expected_data_transfer_length == command.expected_data_transfer_length);
    RC_ASSERT(parsed->final == command.final && parsed->read == read && parsed->write == write);
    RC_ASSERT(parsed->immediate == command.immediate && parsed->lun == command.lun);
    RC_ASSERT(parsed->initiator_task_tag == command.initiator_task_tag);
    RC_ASSERT(parsed->cmd_sn == command.cmd_sn && parsed->exp_stat_sn == command.exp_stat_sn);
    RC_ASSERT(parsed->data_segment_length == command.data_segment_length);
  }));
}

TEST_CASE("What a SCSI Command may not be is refused (section 11.3)", "[iscsi][pdu]") {
  ScsiCommand command{.read = true, .initiator_task_tag = 1};
  Bhs bhs;
  write_scsi_command(command, bhs);
  REQUIRE(parse_scsi_command(bhs).has_value());

  SECTION("neither F nor W") {
    bhs[1] = std::byte{0x40};
    CHECK(parse_scsi_command(bhs).error() == RejectReason::kInvalidPduField);
  }
  SECTION("reserved task attribute") {
    bhs[1] = std::byte{0xc5};
    CHECK(parse_scsi_command(bhs).error() == RejectReason::kProtocolError);
  }
  SECTION("data without a direction") {
    bhs[1] = std::byte{0x81};
    put_big_endian<std::uint32_t>(bhs, 20, 512);
    CHECK(parse_scsi_command(bhs).error() == RejectReason::kInvalidPduField);
  }
  SECTION("both directions without the read length") {
    bhs[1] = std::byte{0xe1};
    CHECK(parse_scsi_command(bhs).error() == RejectReason::kInvalidPduField);
  }
  SECTION("the reserved task tag") {
    put_big_endian<std::uint32_t>(bhs, 16, kReservedTag);
    CHECK(parse_scsi_command(bhs).error() == RejectReason::kInvalidPduField);
  }
  SECTION("an additional header that runs over the end") {
    const std::array<std::byte, 8> ahs{std::byte{0}, std::byte{6}, std::byte{1}};
    CHECK(parse_scsi_command(bhs, ahs).error() == RejectReason::kInvalidPduField);
  }
  SECTION("an additional header of a reserved type") {
    const std::array<std::byte, 4> ahs{std::byte{0}, std::byte{1}, std::byte{3}};
    CHECK(parse_scsi_command(bhs, ahs).error() == RejectReason::kInvalidPduField);
  }
}

TEST_CASE("What other PDUs may not be is refused", "[iscsi][pdu]") {
  Bhs bhs;
  SECTION("Text Request with F and C") {
    write_text_request({.final = true, .continues = true, .initiator_task_tag = 1}, bhs);
    CHECK(parse_text_request(bhs).error() == RejectReason::kProtocolError);
  }
  SECTION("NOP-Out without a task that is not immediate") {
    write_nop_out({.immediate = false}, bhs);
    CHECK(parse_nop_out(bhs).error() == RejectReason::kInvalidPduField);
  }
  SECTION("Logout with a reserved reason") {
    write_logout_request({.reason = static_cast<LogoutReason>(3), .initiator_task_tag = 1}, bhs);
    CHECK(parse_logout_request(bhs).error() == RejectReason::kProtocolError);
  }
  SECTION("SCSI Response with both residual flags") {
    write_scsi_response({}, bhs);
    bhs[1] |= std::byte{0x06};
    CHECK(parse_scsi_response(bhs).error() == RejectReason::kProtocolError);
  }
  SECTION("Data-In with S and without F") {
    write_data_in({.final = true, .has_status = true}, bhs);
    bhs[1] = std::byte{0x01};
    CHECK(parse_data_in(bhs).error() == RejectReason::kProtocolError);
  }
  SECTION("R2T for nothing, or with the reserved tag") {
    write_ready_to_transfer({.target_transfer_tag = 1, .desired_data_transfer_length = 0}, bhs);
    CHECK(parse_ready_to_transfer(bhs).error() == RejectReason::kProtocolError);
    write_ready_to_transfer(
        {.target_transfer_tag = kReservedTag, .desired_data_transfer_length = 1}, bhs);
    CHECK(parse_ready_to_transfer(bhs).error() == RejectReason::kProtocolError);
  }
}

TEST_CASE("Serial numbers compare as in RFC 1982", "[iscsi][pdu]") {
  CHECK(serial_less(1, 2));
  CHECK_FALSE(serial_less(2, 1));
  CHECK_FALSE(serial_less(2, 2));
  CHECK(serial_less(0xffffffffU, 0));
  CHECK(serial_less(0xfffffff0U, 16));
  CHECK_FALSE(serial_less(16, 0xfffffff0U));
  CHECK(serial_less_equal(7, 7));
}

TEST_CASE("Segments are padded to words", "[iscsi][pdu]") {
  CHECK(padding_of(0) == 0);
  CHECK(padding_of(1) == 3);
  CHECK(padding_of(2) == 2);
  CHECK(padding_of(3) == 1);
  CHECK(padding_of(4) == 0);
  CHECK(padded(5) == 8);
  Bhs bhs{};
  put_big_endian_24(bhs, 5, 5);
  bhs[4] = std::byte{2};
  CHECK(bytes_after_bhs(bhs, false, false) == 16);
  CHECK(bytes_after_bhs(bhs, true, true) == 24);
  put_big_endian_24(bhs, 5, 0);
  // Section 11.2.3: no data, no data digest.
  CHECK(bytes_after_bhs(bhs, true, true) == 12);
}

}  // namespace sandbay::iscsi
