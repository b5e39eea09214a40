// The table of the words, in the order in which rules are printed.
#include "fault/rule_words.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "fault/rule_values.h"
#include "fault/traits.h"
#include "runtime/nearest.h"

namespace sandbay::fault {

namespace {

using std::string;
using std::string_view;

constexpr FaultSet kSlowing{Fault::kSlow, Fault::kMemberSlow};
constexpr FaultSet kLate{
    Fault::kSlow,        Fault::kMemberSlow,        Fault::kPduDelay,    Fault::kResponseDelay,
    Fault::kTmfSlow,     Fault::kLoginSlow,         Fault::kWindowClose, Fault::kR2tWithhold,
    Fault::kStallWindow, Fault::kReorderConnections};
constexpr FaultSet kOnPower{Fault::kPowerCut, Fault::kPowerCutAgain};
constexpr FaultSet kMisdirected{Fault::kMisdirectWrite, Fault::kMisdirectRead};
constexpr FaultSet kDamaging{Fault::kFlip, Fault::kMisdirectWrite, Fault::kLost, Fault::kTorn,
                             Fault::kStale};
constexpr FaultSet kOfCommands{Fault::kNothing,
                               Fault::kCheck,
                               Fault::kBusy,
                               Fault::kTaskSetFull,
                               Fault::kReservationConflict,
                               Fault::kUnitAttention,
                               Fault::kUnitNotReady,
                               Fault::kAborted,
                               Fault::kLunVanish,
                               Fault::kAluaState};
constexpr FaultSet kOfPdus{Fault::kNothing,      Fault::kPduDrop,           Fault::kPduDelay,
                           Fault::kDigestHeader, Fault::kDigestData,        Fault::kDrop,
                           Fault::kPduDup,       Fault::kPduTruncate,       Fault::kRate,
                           Fault::kHalfOpen,     Fault::kStallWindow,       Fault::kFragment,
                           Fault::kCorrupt,      Fault::kReorderConnections};
constexpr FaultSet kGaps{Fault::kStatSnGap, Fault::kDataSnGap, Fault::kR2tSnGap};
constexpr FaultSet kOfResponses{Fault::kResponseDelay, Fault::kResponseDrop, Fault::kResidual,
                                Fault::kAsync,         Fault::kWindowClose,  Fault::kR2tWithhold,
                                Fault::kR2tSmall,      Fault::kR2tDisorder};
constexpr FaultSet kOfTmfs{Fault::kTmfReject, Fault::kTmfSlow, Fault::kTmfLie};
constexpr FaultSet kOfLogins{Fault::kLoginReject, Fault::kLoginSlow, Fault::kLoginStall,
                             Fault::kRedirect,    Fault::kNegoOdd,   Fault::kCounterNearWrap};
constexpr FaultSet kOfDrivesToo{Fault::kSlow, Fault::kLost};
constexpr FaultSet kWithOpcode = kOfCommands | kOfPdus | kOfResponses | kOfDrivesToo;
constexpr FaultSet kWithLun = kOfPdus | FaultSet{Fault::kR2tSnGap} | kOfResponses | kOfTmfs;
constexpr FaultSet kOfPaths =
    kWithOpcode | kGaps | kOfTmfs | kOfLogins | FaultSet{Fault::kNopIgnore};
constexpr FaultSet kWithPhases =
    kOfPaths | FaultSet{Fault::kFlap, Fault::kBlackhole, Fault::kSlow, Fault::kLost};
constexpr FaultSet kWithWays{Fault::kDrop,     Fault::kHalfOpen,  Fault::kCorrupt,
                             Fault::kResidual, Fault::kAluaState, Fault::kAsync};
constexpr FaultSet kWithCode{Fault::kCheck, Fault::kUnitAttention, Fault::kUnitNotReady,
                             Fault::kAborted};

constexpr string_view kNumber = "a number such as 100 or 0x40 is possible";
constexpr string_view kPositive = "a number from 1 is possible";
constexpr string_view kTime =
    "a time above 0s such as 500us, 5ms, 2s or 1min is possible, up to 87840h";
constexpr string_view kNameText =
    "a name of up to 64 letters, digits, '.', '_' and '-' is possible";
constexpr string_view kYesNo = "yes and no are possible";
constexpr string_view kRange = "a number or a range such as 8, 8.., ..8 or 8..16 is possible";

template <class T>
struct Named {
  string_view name;
  T value;
};

constexpr std::array<Named<Operation>, 6> kOperations = {{{"read", Operation::kRead},
                                                          {"write", Operation::kWrite},
                                                          {"flush", Operation::kFlush},
                                                          {"unmap", Operation::kUnmap},
                                                          {"write_zeroes", Operation::kWriteZeroes},
                                                          {"advise", Operation::kAdvise}}};
constexpr std::array<Named<Origin>, 7> kOrigins = {{{"host", Origin::kHost},
                                                    {"read-ahead", Origin::kReadAhead},
                                                    {"destage", Origin::kDestage},
                                                    {"rebuild", Origin::kRebuild},
                                                    {"copy", Origin::kCopy},
                                                    {"verify", Origin::kVerify},
                                                    {"clearing", Origin::kClearing}}};
constexpr std::array<Named<FlipPlace>, 3> kFlipPlaces = {
    {{"rest", FlipPlace::kRest}, {"read", FlipPlace::kRead}, {"write", FlipPlace::kWrite}}};
constexpr std::array<Named<PowerLoss>, 4> kLosses = {{{"any", PowerLoss::kAnyOrder},
                                                      {"order", PowerLoss::kInOrder},
                                                      {"all", PowerLoss::kEverything},
                                                      {"none", PowerLoss::kNothing}}};

template <class Table>
string names_of(const Table& table) {
  std::vector<string_view> names;
  for (const auto& row : table) names.push_back(row.name);
  return listing(names) + " are possible";
}

template <class Table>
auto find_named(const Table& table, string_view name)
    -> const std::remove_cvref_t<decltype(table[0])>* {
  for (const auto& row : table) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

template <class Table, class T>
string name_in(const Table& table, T value) {
  for (const auto& row : table) {
    if (row.value == value) return string(row.name);
  }
  return {};
}

// A list of names as a mask of their bits; "any" is every bit.
template <class Table>
string read_mask(const Table& table, std::uint8_t every, string_view value, std::uint8_t& mask) {
  mask = 0;
  if (value == "any") {
    mask = every;
    return {};
  }
  for (const string_view part : parts(value, ',')) {
    const auto* row = find_named(table, part);
    if (row == nullptr) return names_of(table) + ", several with commas, and any";
    mask = static_cast<std::uint8_t>(mask | bit(row->value));
  }
  return {};
}

template <class Table>
string write_mask(const Table& table, std::uint8_t every, std::uint8_t mask) {
  if (mask == every) return "any";
  string text;
  for (const auto& row : table) {
    if ((mask & bit(row.value)) == 0) continue;
    if (!text.empty()) text += ',';
    text += row.name;
  }
  return text;
}

// Rows whose value is a plain member. ---------------------------------------------------------

template <std::uint64_t Rule::* kMember, std::uint64_t kLeast, std::uint64_t kMost>
string read_number(Rule& rule, string_view value) {
  const auto number = to_number(value);
  if (number.has_value() && *number >= kLeast && *number <= kMost) {
    rule.*kMember = *number;
    return {};
  }
  if (kMost != ~std::uint64_t{0}) return fmt::format("{} to {} is possible", kLeast, kMost);
  return string(kLeast == 0 ? kNumber : kPositive);
}

template <std::uint64_t Rule::* kMember, std::uint64_t kDefault>
string write_number(const Rule& rule) {
  return rule.*kMember == kDefault ? "" : fmt::format("{}", rule.*kMember);
}

template <std::optional<std::uint64_t> Rule::* kMember, std::uint64_t kMost>
string read_optional(Rule& rule, string_view value) {
  const auto number = to_number(value);
  if (!number.has_value() || *number > kMost) return fmt::format("0 to {} is possible", kMost);
  rule.*kMember = number;
  return {};
}

template <std::optional<std::uint64_t> Rule::* kMember>
string write_optional(const Rule& rule) {
  const auto& value = rule.*kMember;
  return value.has_value() ? fmt::format("{}", *value) : "";
}

template <Duration Rule::* kMember>
string read_time(Rule& rule, string_view value) {
  const auto time = to_time(value);
  if (!time.has_value() || *time <= Duration::zero()) return string(kTime);
  rule.*kMember = *time;
  return {};
}

template <Duration Rule::* kMember>
string write_time(const Rule& rule) {
  return rule.*kMember == Duration::zero() ? "" : time_text(rule.*kMember);
}

template <bool Rule::* kMember>
string read_flag(Rule& rule, string_view value) {
  if (value != "yes" && value != "no") return string(kYesNo);
  rule.*kMember = value == "yes";
  return {};
}

template <bool Rule::* kMember, bool kDefault>
string write_flag(const Rule& rule) {
  if (rule.*kMember == kDefault) return "";
  return rule.*kMember ? "yes" : "no";
}

template <Bounds Rule::* kMember>
string read_bounds(Rule& rule, string_view value) {
  const auto bounds = to_bounds(value);
  if (!bounds.has_value()) return string(kRange);
  rule.*kMember = *bounds;
  return {};
}

template <Bounds Rule::* kMember>
string write_bounds(const Rule& rule) {
  return rule.*kMember == Bounds{} ? "" : bounds_text(rule.*kMember);
}

template <string Rule::* kMember>
string read_name(Rule& rule, string_view value) {
  if (!is_name(value)) return string(kNameText);
  rule.*kMember = string(value);
  return {};
}

template <string Rule::* kMember>
string write_name(const Rule& rule) {
  return rule.*kMember;
}

// Where. ---------------------------------------------------------------------------------------

constexpr std::array<string_view, kPlaceKinds> kPlaceNames = {
    "drive", "enclosure", "nvram", "member", "meta", "lun", "session", "conn", "link"};

string read_at(Rule& rule, string_view value) {
  constexpr string_view kPlaces =
      "drive:NAME, drive (one or any of them), enclosure, enclosure:NAME, nvram, nvram:NAME, "
      "member:NAME and meta are possible, and, perhaps with * and ?, lun:VOLUME, "
      "session:INITIATOR, conn:TSIH.CID and link:PORTAL";
  const Halves place = halves(value, ":");
  const string_view name = place.first == "disk" ? kPlaceNames[0] : place.first;
  const auto kind = std::ranges::find(kPlaceNames, name);
  if (kind == kPlaceNames.end()) return string(kPlaces);
  rule.at.kind = static_cast<Place::Kind>(kind - kPlaceNames.begin());
  rule.at.name = string(place.second.value_or(""));
  const bool named = place.second.has_value();
  const bool right = of_path(rule.at) ? is_pattern(rule.at.name) : is_name(rule.at.name);
  const bool whole = (rule.at.kind != Place::Kind::kMember || named) &&
                     (rule.at.kind != Place::Kind::kMeta || !named);
  return whole && (right || !named) ? "" : string(kPlaces);
}

string write_at(const Rule& rule) { return place_text(rule.at); }

// Which operations. ----------------------------------------------------------------------------

string read_op(Rule& rule, string_view value) {
  return read_mask(kOperations, kEveryOperation, value, rule.operations);
}
string write_op(const Rule& rule) {
  return write_mask(kOperations, kEveryOperation, rule.operations);
}

string read_origin(Rule& rule, string_view value) {
  return read_mask(kOrigins, kEveryOrigin, value, rule.origins);
}
string write_origin(const Rule& rule) { return write_mask(kOrigins, kEveryOrigin, rule.origins); }

string read_lba(Rule& rule, string_view value) {
  const auto extent = to_extent(value);
  if (!extent.has_value()) return "an LBA and a count such as 0x1000+64 are possible";
  rule.lba = extent;
  return {};
}
string write_lba(const Rule& rule) { return rule.lba.has_value() ? extent_text(*rule.lba) : ""; }

string read_fua(Rule& rule, string_view value) {
  if (value != "yes" && value != "no") return string(kYesNo);
  rule.fua = value == "yes";
  return {};
}
string write_fua(const Rule& rule) {
  if (!rule.fua.has_value()) return "";
  return *rule.fua ? "yes" : "no";
}

string read_opcode(Rule& rule, string_view value) {
  constexpr string_view kOpcodes = "SCSI operation codes such as 0x28,0x88 are possible";
  for (const string_view part : parts(value, ',')) {
    const auto number = to_number(part);
    if (!number.has_value() || *number > 0xff) return string(kOpcodes);
    rule.opcodes.push_back(static_cast<std::uint8_t>(*number));
  }
  std::ranges::sort(rule.opcodes);
  const auto twice = std::ranges::unique(rule.opcodes);
  rule.opcodes.erase(twice.begin(), twice.end());
  return {};
}
string write_opcode(const Rule& rule) {
  string text;
  for (const std::uint8_t opcode : rule.opcodes) {
    text += fmt::format("{}{:#04x}", text.empty() ? "" : ",", opcode);
  }
  return text;
}

string read_initiator(Rule& rule, string_view value) {
  if (!is_pattern(value)) {
    return "the name of an initiator such as iqn.1993-08.org.debian:01:host, perhaps with * and ?, "
           "is possible";
  }
  rule.initiator = string(value);
  return {};
}

// RFC 7143, section 11.2.1.2; target opcodes have the bit 0x20.
constexpr std::array<Named<std::uint8_t>, 16> kPduNames = {{{"nop-out", 0x00},
                                                            {"scsi-command", 0x01},
                                                            {"tmf-request", 0x02},
                                                            {"text-request", 0x04},
                                                            {"data-out", 0x05},
                                                            {"logout-request", 0x06},
                                                            {"snack", 0x10},
                                                            {"nop-in", 0x20},
                                                            {"scsi-response", 0x21},
                                                            {"tmf-response", 0x22},
                                                            {"text-response", 0x24},
                                                            {"data-in", 0x25},
                                                            {"logout-response", 0x26},
                                                            {"r2t", 0x31},
                                                            {"async", 0x32},
                                                            {"reject", 0x3f}}};

string read_pdu(Rule& rule, string_view value) {
  for (const string_view part : parts(value, ',')) {
    const auto* row = find_named(kPduNames, part);
    if (row == nullptr) return names_of(kPduNames) + ", several with commas";
    rule.pdus |= std::uint64_t{1} << row->value;
  }
  return {};
}
string write_pdu(const Rule& rule) {
  string text;
  for (const auto& row : kPduNames) {
    if ((rule.pdus >> row.value & 1U) == 0) continue;
    text += fmt::format("{}{}", text.empty() ? "" : ",", row.name);
  }
  return text;
}

string read_direction(Rule& rule, string_view value) {
  if (value != "in" && value != "out") return "in (to the target) and out are possible";
  rule.outgoing = value == "out";
  return {};
}
string write_direction(const Rule& rule) {
  if (!rule.outgoing.has_value()) return "";
  return *rule.outgoing ? "out" : "in";
}

string read_status(Rule& rule, string_view value) {
  const auto status = to_number(value);
  if (!status.has_value() || *status < 0x0200 || *status > 0x03ff) {
    return "a status class and detail of RFC 7143, section 11.13.5, such as 0x0201 "
           "(authentication), "
           "0x0203 (not found), 0x0206 (too many connections), 0x0301 (unavailable) and 0x0302 "
           "(out "
           "of resources), is possible";
  }
  rule.status = *status;
  return {};
}
string write_status(const Rule& rule) {
  return rule.status == 0x0301 ? "" : fmt::format("{:#06x}", rule.status);
}

string read_address(Rule& rule, string_view value) {
  const bool wild = value.find_first_of("*?") != string_view::npos;
  if (!is_pattern(value) || wild) return "an address such as 192.0.2.7:3260 is possible";
  rule.address = string(value);
  return {};
}

// Which of them a fault knows, unusable() tells when the fault is known.
string read_how(Rule& rule, string_view value) {
  const auto row = std::ranges::find(all_ways(), value, &WayRow::name);
  if (row == all_ways().end()) {
    std::vector<string_view> names;
    for (const WayRow& each : all_ways()) names.push_back(each.name);
    return listing(names) + " are possible";
  }
  rule.way = row->way;
  return {};
}
string write_how(const Rule& rule) {
  const auto row = std::ranges::find(all_ways(), rule.way, &WayRow::way);
  return row == all_ways().end() ? "" : string(row->name);
}

string read_wait(Rule& rule, string_view value) {
  const auto time = to_time(value);
  constexpr auto kMost = std::chrono::seconds(0xffff);
  if (!time.has_value() || *time > kMost || *time % std::chrono::seconds(1) != Duration::zero()) {
    return "whole seconds up to 65535s are possible";
  }
  rule.time_to_wait = *time;
  return {};
}
string write_wait(const Rule& rule) {
  return rule.time_to_wait == std::chrono::seconds(3) ? "" : time_text(rule.time_to_wait);
}

// When. ----------------------------------------------------------------------------------------

string read_probability(Rule& rule, string_view value) {
  const auto probability = to_real(value);
  if (!probability.has_value() || *probability > 1) return "0 to 1 is possible";
  rule.probability = *probability;
  return {};
}
string write_probability(const Rule& rule) {
  return rule.probability == 1 ? "" : fmt::format("{}", rule.probability);
}

string read_until(Rule& rule, string_view value) {
  const auto time = to_time(value);
  if (!time.has_value() || *time <= Duration::zero()) return string(kTime);
  rule.until = time;
  return {};
}
string write_until(const Rule& rule) {
  return rule.until.has_value() ? time_text(*rule.until) : "";
}

string read_event(Rule& rule, string_view value) {
  const Halves halved = halves(value, ":");
  const bool rules = halved.second.has_value() && halved.first == "rule" && is_name(*halved.second);
  if (!rules && !is_name(value)) {
    return "an event such as rebuild.start, rule:ID (that rule fires) or then (another rule's "
           "then= names this one) is possible";
  }
  rule.event = string(value);
  return {};
}

string read_state(Rule& rule, string_view value) {
  constexpr string_view kTests =
      "NAME, !NAME, NAME:VALUE and several of them with commas are possible";
  rule.state.clear();
  for (string_view part : parts(value, ',')) {
    StateTest test;
    if (part.starts_with('!')) {
      test.negated = true;
      part.remove_prefix(1);
    }
    const Halves halved = halves(part, ":");
    if (!is_name(halved.first)) return string(kTests);
    test.name = string(halved.first);
    if (halved.second.has_value()) {
      test.value = to_signed(*halved.second);
      if (!test.value.has_value()) return string(kTests);
    }
    rule.state.push_back(std::move(test));
  }
  return {};
}
string write_state(const Rule& rule) {
  string text;
  for (const StateTest& test : rule.state) {
    if (!text.empty()) text += ',';
    text += (test.negated ? "!" : "") + test.name;
    if (test.value.has_value()) text += fmt::format(":{}", *test.value);
  }
  return text;
}

// What. ----------------------------------------------------------------------------------------

string read_do(Rule& rule, string_view value) {
  std::vector<string> names;
  for (const Traits& row : all_traits()) {
    if (row.name == value) {
      rule.fault = row.fault;
      return {};
    }
    names.emplace_back(row.name);
  }
  const string_view near = nearest(value, names);
  return near.empty() ? "unknown fault; sandbay fault kinds lists them"
                      : fmt::format("unknown fault; did you mean {}?", near);
}
string write_do(const Rule& rule) { return string(fault_name(rule.fault)); }

string read_keep(Rule& rule, string_view value) {
  constexpr string_view kKeeps =
      "first:N, last:N, random and block numbers such as 0,2,5 are possible";
  rule.keep = {};
  if (value == "random") return {};
  const Halves halved = halves(value, ":");
  if (halved.second.has_value()) {
    const auto count = to_number(*halved.second);
    const bool known = halved.first == "first" || halved.first == "last";
    if (!known || !count.has_value()) return string(kKeeps);
    rule.keep.kind = halved.first == "first" ? Keep::Kind::kFirst : Keep::Kind::kLast;
    rule.keep.count = *count;
    return {};
  }
  rule.keep.kind = Keep::Kind::kList;
  for (const string_view part : parts(value, ',')) {
    const auto block = to_number(part);
    if (!block.has_value()) return string(kKeeps);
    rule.keep.blocks.push_back(*block);
  }
  return {};
}
string write_keep(const Rule& rule) {
  switch (rule.keep.kind) {
    case Keep::Kind::kRandom:
      return "";
    case Keep::Kind::kFirst:
      return fmt::format("first:{}", rule.keep.count);
    case Keep::Kind::kLast:
      return fmt::format("last:{}", rule.keep.count);
    case Keep::Kind::kList:
      return fmt::format("{}", fmt::join(rule.keep.blocks, ","));
  }
  return "";
}

string read_key(Rule& rule, string_view value) {
  const auto key = to_number(value);
  if (!key.has_value() || *key > 0xf) return "a sense key from 0 to 0xf is possible";
  rule.sense_key = static_cast<std::uint8_t>(*key);
  return {};
}
string write_key(const Rule& rule) {
  return rule.sense_key.has_value() ? fmt::format("{:#x}", *rule.sense_key) : "";
}

// As SPC writes it: two hexadecimal digits, a slash, two more.
string read_code(Rule& rule, string_view value) {
  std::uint16_t code = 0;
  const bool formed = value.size() == 5 && value[2] == '/';
  const string digits = formed ? string(value.substr(0, 2)) + string(value.substr(3)) : string();
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
  if (!formed || error != std::errc() || end != digits.data() + digits.size()) {
    return "ASC and ASCQ in hexadecimal digits such as 11/00 are possible";
  }
  rule.sense_code = code;
  return {};
}
string write_code(const Rule& rule) {
  if (!rule.sense_code.has_value()) return "";
  return fmt::format("{:02x}/{:02x}", *rule.sense_code >> 8U, *rule.sense_code & 0xffU);
}

string read_where(Rule& rule, string_view value) {
  const auto* row = find_named(kFlipPlaces, value);
  if (row == nullptr) return names_of(kFlipPlaces);
  rule.where = row->value;
  return {};
}
string write_where(const Rule& rule) {
  return rule.where == FlipPlace::kRest ? "" : name_in(kFlipPlaces, rule.where);
}

string read_to(Rule& rule, string_view value) {
  constexpr string_view kTargets = "an LBA, drive:NAME and drive:NAME@LBA are possible";
  const Halves halved = halves(value, "@");
  std::optional<string_view> address = halved.second;
  const Halves drive = halves(halved.first, ":");
  if (drive.second.has_value()) {
    if ((drive.first != "drive" && drive.first != "disk") || !is_name(*drive.second)) {
      return string(kTargets);
    }
    rule.to_drive = string(*drive.second);
  } else {
    if (address.has_value()) return string(kTargets);
    address = value;
  }
  if (!address.has_value()) return {};
  rule.to = to_number(*address);
  return rule.to.has_value() ? "" : string(kTargets);
}
string write_to(const Rule& rule) {
  const string address = rule.to.has_value() ? fmt::format("{:#x}", *rule.to) : "";
  if (rule.to_drive.empty()) return address;
  return "drive:" + rule.to_drive + (address.empty() ? "" : "@" + address);
}

string read_latency(Rule& rule, string_view value) {
  constexpr string_view kLatencies =
      "5ms, 5ms..20ms (evenly) and exp:5ms (with that mean) are possible";
  rule.latency = {};
  if (value.starts_with("exp:")) {
    rule.latency.exponential = true;
    value.remove_prefix(4);
  }
  const Halves ends = halves(value, "..");
  const auto least = to_time(ends.first);
  const auto most = to_time(ends.second.value_or(ends.first));
  if (!least.has_value() || !most.has_value() || *least > *most) return string(kLatencies);
  if (rule.latency.exponential && ends.second.has_value()) return string(kLatencies);
  rule.latency.least = *least;
  rule.latency.most = *most;
  return {};
}
string write_latency(const Rule& rule) {
  const Latency& latency = rule.latency;
  if (latency == Latency{}) return "";
  if (latency.exponential) return "exp:" + time_text(latency.least);
  if (latency.least == latency.most) return time_text(latency.least);
  return time_text(latency.least) + ".." + time_text(latency.most);
}

string read_bandwidth(Rule& rule, string_view value) {
  const auto rate = to_rate(value);
  if (!rate.has_value() || *rate == 0) return "a rate such as 40MB/s or 1Gbit/s is possible";
  rule.bandwidth = *rate;
  return {};
}
string write_bandwidth(const Rule& rule) {
  return rule.bandwidth == 0 ? "" : rate_text(rule.bandwidth);
}

string read_growth(Rule& rule, string_view value) {
  const auto rate = to_real(value);
  if (!rate.has_value() || *rate <= 0 || *rate > 1e6) {
    return "more than 0 up to 1000000 blocks a second is possible";
  }
  rule.rate = *rate;
  return {};
}
string write_growth(const Rule& rule) { return rule.rate == 1 ? "" : fmt::format("{}", rule.rate); }

string read_content(Rule& rule, string_view value) {
  if (value != "same" && value != "other") return "same and other are possible";
  rule.other_content = value == "other";
  return {};
}
string write_content(const Rule& rule) { return rule.other_content ? "other" : ""; }

string read_block(Rule& rule, string_view value) {
  if (value != "512" && value != "4096") return "512 and 4096 are possible";
  rule.block_bytes = value == "512" ? 512 : 4096;
  return {};
}

string read_loss(Rule& rule, string_view value) {
  const auto* row = find_named(kLosses, value);
  if (row == nullptr) return names_of(kLosses);
  rule.loss = row->value;
  return {};
}
string write_loss(const Rule& rule) {
  return rule.loss == PowerLoss::kAnyOrder ? "" : name_in(kLosses, rule.loss);
}

string read_within(Rule& rule, string_view value) {
  if (value != "tolerance") return "tolerance is possible";
  rule.within_tolerance = true;
  return {};
}
string write_within(const Rule& rule) { return rule.within_tolerance ? "tolerance" : ""; }

string read_beyond(Rule& rule, string_view value) {
  if (value != "tolerance") return "tolerance is possible";
  rule.within_tolerance = false;
  return {};
}
string write_nothing(const Rule& /*rule*/) { return ""; }

string read_set(Rule& rule, string_view value) {
  constexpr string_view kChanges = "NAME, NAME:VALUE and several of them with commas are possible";
  rule.set.clear();
  for (const string_view part : parts(value, ',')) {
    const Halves halved = halves(part, ":");
    const auto number = to_signed(halved.second.value_or("1"));
    if (!is_name(halved.first) || !number.has_value()) return string(kChanges);
    rule.set.push_back({.name = string(halved.first), .value = *number});
  }
  return {};
}
string write_set(const Rule& rule) {
  string text;
  for (const StateChange& change : rule.set) {
    if (!text.empty()) text += ',';
    text += change.name;
    if (change.value != 1) text += fmt::format(":{}", change.value);
  }
  return text;
}

string read_then(Rule& rule, string_view value) {
  const Halves halved = halves(value, ":");
  const string_view name = halved.second.value_or("");
  if (halved.first != "rule" || !is_name(name)) return "rule:ID is possible";
  rule.then = string(name);
  return {};
}
string write_then(const Rule& rule) { return rule.then.empty() ? "" : "rule:" + rule.then; }

string read_matches(Rule& rule, string_view value) {
  constexpr string_view kMatches = "ascending numbers from 1 such as 3,17,42 are possible";
  for (const string_view part : parts(value, ',')) {
    const auto number = to_number(part);
    const std::uint64_t last = rule.matches.empty() ? 0 : rule.matches.back();
    if (!number.has_value() || *number <= last) return string(kMatches);
    rule.matches.push_back(*number);
  }
  return {};
}
string write_matches(const Rule& rule) { return fmt::format("{}", fmt::join(rule.matches, ",")); }

constexpr std::uint64_t kAnyNumber = ~std::uint64_t{0};

constexpr std::array kWords = {
    Word{"id", kEveryFault, read_name<&Rule::id>, write_name<&Rule::id>},
    Word{"enabled", kEveryFault, read_flag<&Rule::enabled>, write_flag<&Rule::enabled, true>},
    Word{"at", kEveryFault, read_at, write_at},
    Word{"op", kEveryFault, read_op, write_op},
    Word{"lba", kEveryFault, read_lba, write_lba},
    Word{"length", kEveryFault, read_bounds<&Rule::length>, write_bounds<&Rule::length>},
    Word{"fua", kEveryFault, read_fua, write_fua},
    Word{"origin", kEveryFault, read_origin, write_origin},
    Word{"depth", kEveryFault, read_bounds<&Rule::depth>, write_bounds<&Rule::depth>},
    Word{"opcode", kWithOpcode, read_opcode, write_opcode},
    Word{"initiator", kOfPaths, read_initiator, write_name<&Rule::initiator>},
    Word{"pdu", kOfPdus, read_pdu, write_pdu},
    Word{"dir", kOfPdus, read_direction, write_direction},
    Word{"lun", kWithLun, read_optional<&Rule::lun, 16383>, write_optional<&Rule::lun>},
    Word{"after", kEveryFault, read_number<&Rule::after, 0, kAnyNumber>,
         write_number<&Rule::after, 0>},
    Word{"every", kEveryFault, read_number<&Rule::every, 1, kAnyNumber>,
         write_number<&Rule::every, 1>},
    Word{"count", kEveryFault, read_number<&Rule::count, 1, kAnyNumber>,
         write_number<&Rule::count, 0>},
    Word{"p", kEveryFault, read_probability, write_probability},
    Word{"matches", kEveryFault, read_matches, write_matches},
    Word{"from", kEveryFault, read_time<&Rule::from>, write_time<&Rule::from>},
    Word{"until", kEveryFault, read_until, write_until},
    Word{"event", kEveryFault, read_event, write_name<&Rule::event>},
    Word{"state", kEveryFault, read_state, write_state},
    Word{"within", kEveryFault, read_within, write_within},
    Word{"beyond", kEveryFault, read_beyond, write_nothing},
    Word{"do", kEveryFault, read_do, write_do},
    Word{"overlay", kDamaging, read_flag<&Rule::overlay>, write_flag<&Rule::overlay, true>},
    Word{"keep", FaultSet{Fault::kTorn}, read_keep, write_keep},
    Word{"bits", FaultSet{Fault::kFlip}, read_number<&Rule::bits, 1, 4096>,
         write_number<&Rule::bits, 1>},
    Word{"where", FaultSet{Fault::kFlip}, read_where, write_where},
    Word{"sticky", FaultSet{Fault::kFlip}, read_flag<&Rule::sticky>,
         write_flag<&Rule::sticky, false>},
    Word{"to", kMisdirected, read_to, write_to},
    Word{"latency", kLate, read_latency, write_latency},
    Word{"lanes", kSlowing, read_number<&Rule::lanes, 1, 1024>, write_number<&Rule::lanes, 0>},
    Word{"bandwidth", kSlowing | FaultSet{Fault::kRate}, read_bandwidth, write_bandwidth},
    Word{"up", kWithPhases, read_time<&Rule::up>, write_time<&Rule::up>},
    Word{"down", kWithPhases, read_time<&Rule::down>, write_time<&Rule::down>},
    Word{"patience", FaultSet{Fault::kMemberPartition}, read_time<&Rule::patience>,
         write_time<&Rule::patience>},
    Word{"rate", FaultSet{Fault::kLseGrowing}, read_growth, write_growth},
    Word{"cluster", FaultSet{Fault::kLseGrowing}, read_number<&Rule::cluster, 1, 1 << 20>,
         write_number<&Rule::cluster, 8>},
    Word{"threshold", FaultSet{Fault::kLseGrowing}, read_number<&Rule::threshold, 1, kAnyNumber>,
         write_number<&Rule::threshold, 0>},
    Word{"content", FaultSet{Fault::kInsert}, read_content, write_content},
    Word{"serial", FaultSet{Fault::kWrongId}, read_name<&Rule::serial>, write_name<&Rule::serial>},
    Word{"blocks", FaultSet{Fault::kWrongId}, read_number<&Rule::block_count, 1, 1ULL << 55U>,
         write_number<&Rule::block_count, 0>},
    Word{"block", FaultSet{Fault::kWrongId}, read_block, write_number<&Rule::block_bytes, 0>},
    Word{"wear", FaultSet{Fault::kSmart}, read_optional<&Rule::wear, 255>,
         write_optional<&Rule::wear>},
    Word{"temperature", FaultSet{Fault::kSmart}, read_optional<&Rule::temperature, 255>,
         write_optional<&Rule::temperature>},
    Word{"loss", kOnPower, read_loss, write_loss},
    Word{"how", kWithWays, read_how, write_how},
    Word{"bytes", FaultSet{Fault::kResidual, Fault::kR2tSmall, Fault::kFragment},
         read_number<&Rule::bytes, 1, 1 << 20>, write_number<&Rule::bytes, 0>},
    Word{"wait", FaultSet{Fault::kAsync}, read_wait, write_wait},
    Word{"result", FaultSet{Fault::kTmfReject}, read_number<&Rule::result, 0, 255>,
         write_number<&Rule::result, 255>},
    Word{"status", FaultSet{Fault::kLoginReject}, read_status, write_status},
    Word{"address", FaultSet{Fault::kRedirect}, read_address, write_name<&Rule::address>},
    Word{"permanent", FaultSet{Fault::kRedirect}, read_flag<&Rule::permanent>,
         write_flag<&Rule::permanent, false>},
    Word{"key", FaultSet{Fault::kCheck}, read_key, write_key},
    Word{"code", kWithCode, read_code, write_code},
    Word{"set", kEveryFault, read_set, write_set},
    Word{"then", kEveryFault, read_then, write_then},
    Word{"for", kEveryFault, read_time<&Rule::duration>, write_time<&Rule::duration>},
};

}  // namespace

std::string place_text(const Place& place) {
  string text(kPlaceNames[static_cast<std::size_t>(place.kind)]);
  return place.name.empty() ? text : text + ":" + place.name;
}

string_view pdu_name(std::uint8_t opcode) {
  const auto* row = std::ranges::find(kPduNames, opcode, &Named<std::uint8_t>::value);
  return row == kPduNames.end() ? "login" : row->name;
}

std::vector<string_view> operation_names(std::uint8_t operations) {
  std::vector<string_view> names;
  for (const auto& row : kOperations) {
    if ((operations & bit(row.value)) != 0) names.push_back(row.name);
  }
  return names;
}

std::span<const Word> rule_words() { return kWords; }

}  // namespace sandbay::fault
