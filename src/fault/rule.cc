// From text to a rule and back, word by word through the table of rule_words.h, and what a rule
// must have as a whole.
#include "fault/rule.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "fault/rule_values.h"
#include "fault/rule_words.h"
#include "fault/traits.h"
#include "runtime/nearest.h"

namespace sandbay::fault {

namespace {

constexpr std::string_view kBlank = " \t\r\n";

const Word* find_word(std::string_view name) {
  for (const Word& word : rule_words()) {
    if (word.name == name) return &word;
  }
  return nullptr;
}

std::string unknown_word(std::string_view name) {
  std::vector<std::string> names;
  for (const Word& word : rule_words()) names.emplace_back(word.name);
  const std::string_view near = nearest(name, names);
  return fmt::format(
      "{}: unknown word; {}", shown(name),
      near.empty() ? "sandbay-faults(7) lists them" : fmt::format("did you mean {}=?", near));
}

std::string words_of(Fault fault) {
  std::vector<std::string_view> names;
  for (const Word& word : rule_words()) {
    if (word.faults != kEveryFault && word.knows(fault)) names.push_back(word.name);
  }
  if (names.empty()) return "it has no words of its own";
  return "its own words are " + listing(names);
}

// What no single word can tell. Empty: the rule is whole.
std::string wrong_place(const Rule& rule) {
  const Traits& row = traits(rule.fault);
  if ((row.places & bit(rule.at.kind)) != 0) return {};
  constexpr std::array<std::string_view, kPlaceKinds> kAt = {
      "at=drive",      "at=enclosure",         "at=nvram",         "at=member:NAME", "at=meta",
      "at=lun:VOLUME", "at=session:INITIATOR", "at=conn:TSIH.CID", "at=link:PORTAL"};
  std::vector<std::string_view> places;
  for (std::size_t i = 0; i < kAt.size(); ++i) {
    if ((row.places >> i & 1U) != 0) places.push_back(kAt[i]);
  }
  return fmt::format("do={}: {} {} possible", row.name, listing(places),
                     places.size() == 1 ? "is" : "are");
}

// Whether the fault strikes any of the operations that the rule names.
std::string not_struck(const Rule& rule) {
  if (struck_operations(rule) != 0) return {};
  Rule unlimited = rule;
  unlimited.operations = 0;
  Rule can = rule;
  can.operations = struck_operations(unlimited);
  for (const Word& word : rule_words()) {
    if (word.name == "op") {
      return fmt::format("op={}: do={} strikes {}", word.write(rule), fault_name(rule.fault),
                         word.write(can));
    }
  }
  return {};
}

std::string wrong_at_path(const Rule& rule) {
  const std::string place = place_text({.kind = rule.at.kind, .name = {}});
  if (rule.origins != 0) {
    return fmt::format("at={}: origin is of drives and members; initiator is possible", place);
  }
  if (rule.within_tolerance) return fmt::format("at={}: within is of drives", place);
  if (rule.lanes != 0 || rule.bandwidth != 0 || !rule.overlay) {
    if (rule.fault != Fault::kRate) {
      return fmt::format("at={}: lanes, bandwidth and overlay are of drives", place);
    }
  }
  if (!of_pdus(rule.at)) {
    const bool of_connections = rule.pdus != 0 || rule.outgoing.has_value() || rule.lun.has_value();
    if (of_connections) return "at=lun: pdu, dir and lun are of session, conn and link";
    if (!rule.opcodes.empty() && rule.operations != 0) return "opcode=: leave out op=";
    return not_struck(rule);
  }
  if (rule.operations != 0 || rule.lba.has_value() || rule.length != Bounds{} ||
      rule.fua.has_value() || rule.depth != Bounds{}) {
    return fmt::format(
        "at={}: op, lba, length, fua and depth are of LUNs; pdu, dir, opcode, initiator and lun "
        "are "
        "possible",
        place);
  }
  constexpr std::uint64_t kCommand = 2;
  if (!rule.opcodes.empty() && (rule.pdus | kCommand) != kCommand) {
    return "opcode=: is of scsi-command alone; leave out the other PDUs";
  }
  if (pdus_of(rule) == 0) {
    return fmt::format("do={}: none of these PDUs takes that direction, or has data",
                       fault_name(rule.fault));
  }
  return {};
}

std::string wrong_operations(const Rule& rule) {
  if (of_path(rule.at)) return wrong_at_path(rule);
  if (!rule.opcodes.empty() || !rule.initiator.empty() || rule.pdus != 0 ||
      rule.outgoing.has_value() || rule.lun.has_value()) {
    return "opcode, initiator, pdu, dir and lun: at=lun, session, conn and link are possible";
  }
  if (rule.up != Duration::zero() || rule.down != Duration::zero()) {
    return "up and down: at=lun, session, conn and link are possible";
  }
  const bool blocks = rule.lba.has_value() || rule.length != Bounds{} || rule.fua.has_value() ||
                      rule.origins != 0 || rule.depth != Bounds{};
  if (rule.at.kind == Place::Kind::kMeta) {
    if (blocks) return "at=meta: lba, length, fua, origin and depth are of drives and members";
    if (rule.fault == Fault::kMapCorrupt) return not_struck(rule);
    if (rule.operations == 0) return {};
    return fmt::format("op=: do={} is of no operation; event and after are possible",
                       fault_name(rule.fault));
  }
  if (rule.fault == Fault::kMemberReturnStale) {
    if (rule.operations == 0 && !blocks) return {};
    return "do=member.return.stale: op, lba, length, fua, origin and depth are of operations; "
           "event, "
           "from, state and another rule's then are possible here";
  }
  if (rule.at.kind == Place::Kind::kNvram) {
    if (rule.operations == 0 && !blocks) return {};
    return "at=nvram: op, lba, length, fua, origin and depth are of drives; event, from, state and "
           "another rule's then are possible here";
  }
  return not_struck(rule);
}

std::string missing_at_path(const Rule& rule) {
  if ((rule.up == Duration::zero()) != (rule.down == Duration::zero())) {
    return "up= and down=: say how long both last";
  }
  switch (rule.fault) {
    case Fault::kCheck:
      if (!rule.sense_key.has_value() || !rule.sense_code.has_value()) {
        return "do=check: say which sense data with key= and code=, for example key=3 code=11/00";
      }
      break;
    case Fault::kPduDelay:
    case Fault::kResponseDelay:
    case Fault::kTmfSlow:
    case Fault::kLoginSlow:
    case Fault::kWindowClose:
    case Fault::kR2tWithhold:
    case Fault::kStallWindow:
      if (rule.latency == Latency{}) {
        return fmt::format("do={}: say how long with latency=", fault_name(rule.fault));
      }
      break;
    case Fault::kRate:
      if (rule.bandwidth == 0) return "do=rate: say how fast with bandwidth=";
      break;
    case Fault::kFlap:
      if (rule.up == Duration::zero() || rule.down == Duration::zero()) {
        return "do=flap: say how long the link is up and down with up= and down=";
      }
      break;
    case Fault::kBlackhole:
      if (rule.duration == Duration::zero()) {
        return "do=blackhole: say how long it lasts with for=";
      }
      break;
    case Fault::kRedirect:
      if (rule.address.empty()) return "do=redirect: say where to with address=";
      break;
    default:
      break;
  }
  return {};
}

std::string missing(const Rule& rule) {
  const std::string_view name = fault_name(rule.fault);
  switch (rule.fault) {
    case Fault::kFailTransient:
    case Fault::kStall:
    case Fault::kMemberReturnStale:
      if (rule.duration == Duration::zero() && !rule.until.has_value()) {
        return fmt::format("do={}: say how long it lasts with for= or until=", name);
      }
      break;
    case Fault::kStale:
      if (!rule.lba.has_value()) {
        return "do=stale: say with lba= which blocks return to what they are when the rule is "
               "added";
      }
      if (!looks_at_operations(rule) && rule.event.empty() && rule.state.empty() &&
          rule.from == Duration::zero()) {
        return "do=stale: say when, for example with after=, from= or event=then";
      }
      break;
    case Fault::kSlow:
    case Fault::kMemberSlow:
      if (rule.latency == Latency{} && rule.bandwidth == 0) {
        return fmt::format("do={}: say how slow with latency= or bandwidth=", name);
      }
      break;
    case Fault::kWrongId:
      if (rule.serial.empty() && rule.block_count == 0 && rule.block_bytes == 0) {
        return "do=wrong.id: say what changes with serial=, blocks= or block=";
      }
      break;
    default:
      break;
  }
  if (rule.until.has_value() && *rule.until <= rule.from) return "until=: must be later than from=";
  if (!rule.to_drive.empty() && rule.to_drive == rule.at.name) {
    return "to=: names the drive itself; an LBA alone is possible";
  }
  if (!rule.matches.empty() && (rule.after > 0 || rule.every > 1 || rule.probability < 1)) {
    return "matches=: says alone which matches fire; leave out after=, every= and p=";
  }
  if (rule.then == rule.id && !rule.id.empty()) return "then=: names the rule itself";
  return {};
}

std::string wrong_way(const Rule& rule) {
  if (rule.way == Way::kFirst) return {};
  std::vector<std::string_view> names;
  for (const WayRow& row : all_ways()) {
    if (row.fault != rule.fault) continue;
    if (row.way == rule.way) return {};
    names.push_back(row.name);
  }
  return fmt::format("how=: for do={} {} are possible", fault_name(rule.fault), listing(names));
}

std::string unusable(const Rule& rule) {
  std::string wrong = wrong_place(rule);
  if (wrong.empty()) wrong = wrong_way(rule);
  if (wrong.empty()) wrong = wrong_operations(rule);
  if (wrong.empty()) wrong = missing(rule);
  if (wrong.empty()) wrong = missing_at_path(rule);
  return wrong;
}

}  // namespace

std::expected<Rule, std::string> parse_rule(std::string_view text) {
  if (text.size() > kLongestRule) {
    return std::unexpected(fmt::format("the rule has {} characters; up to {} are possible",
                                       text.size(), kLongestRule));
  }
  Rule rule;
  std::vector<const Word*> used;
  bool first = true;
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(kBlank), text.size()));
    if (text.empty()) break;
    const std::string_view token = text.substr(0, text.find_first_of(kBlank));
    text.remove_prefix(token.size());
    if (std::exchange(first, false) && token == "rule") continue;

    const Halves halved = halves(token, "=");
    const Word* const word = find_word(halved.first);
    if (word == nullptr) {
      return std::unexpected(unknown_word(halved.first));
    }
    if (!halved.second.has_value()) {
      return std::unexpected(fmt::format("{}: write {}=VALUE", word->name, word->name));
    }
    for (const Word* other : used) {
      if (other == word) return std::unexpected(fmt::format("{}=: stands twice", word->name));
    }
    used.push_back(word);
    const std::string accepted = word->read(rule, *halved.second);
    if (!accepted.empty()) {
      return std::unexpected(fmt::format("{}={}: {}", word->name, shown(*halved.second), accepted));
    }
  }
  for (const std::string_view needed : {"at", "do"}) {
    const bool there =
        std::ranges::any_of(used, [&](const Word* word) { return word->name == needed; });
    if (!there) {
      return std::unexpected(
          fmt::format("{}= is missing; a rule is such as at=drive:d3 do=fail", needed));
    }
  }
  for (const Word* word : used) {
    if (word->knows(rule.fault)) continue;
    return std::unexpected(fmt::format("{}=: do={} does not know it; {}", word->name,
                                       fault_name(rule.fault), words_of(rule.fault)));
  }
  std::string wrong = unusable(rule);
  if (!wrong.empty()) return std::unexpected(std::move(wrong));
  return rule;
}

std::string print_rule(const Rule& rule) {
  std::string text = "rule";
  for (const Word& word : rule_words()) {
    if (!word.knows(rule.fault)) continue;
    const std::string value = word.write(rule);
    if (!value.empty()) text += fmt::format(" {}={}", word.name, value);
  }
  return text;
}

}  // namespace sandbay::fault
