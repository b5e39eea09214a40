// The text form of rules: what is printed is what was parsed, whatever the rule, and every mistake
// is one line that names the word and what would be accepted.
#include "fault/rule.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <rapidcheck.h>
#include <catch2/catch.hpp>

#include "fault/rule_values.h"
#include "fault/rule_words.h"
#include "fault/traits.h"

namespace sandbay::fault {
namespace {

Rule parsed(const std::string& text) {
  const auto rule = parse_rule(text);
  INFO(text);
  if (!rule.has_value()) FAIL(rule.error());
  return *rule;
}

std::string refused(const std::string& text) {
  const auto rule = parse_rule(text);
  INFO(text);
  REQUIRE_FALSE(rule.has_value());
  CHECK(rule.error().find('\n') == std::string::npos);
  CHECK(rule.error().size() < 400);
  return rule.error();
}

std::string pick(const std::vector<std::string>& choices) { return *rc::gen::elementOf(choices); }

bool flip_a_coin() { return *rc::gen::arbitrary<bool>(); }

std::string some_number(std::uint64_t least = 0) {
  const auto number = *rc::gen::inRange<std::uint64_t>(least, 1 << 20);
  return flip_a_coin() ? fmt::format("{}", number) : fmt::format("{:#x}", number);
}

std::string some_time() {
  return fmt::format("{}{}", *rc::gen::inRange(1, 5000), pick({"ns", "us", "ms", "s", "min", "h"}));
}

std::string some_bounds() {
  const auto least = *rc::gen::inRange(0, 100);
  const auto most = least + *rc::gen::inRange(0, 100);
  return pick({fmt::format("{}", least), fmt::format("{}..", least), fmt::format("..{}", most),
               fmt::format("{}..{}", least, most)});
}

std::string words_at_path(const Traits& row) {
  switch (row.fault) {
    case Fault::kCheck:
      return " key=" + pick({"0", "3", "0xf"}) + " code=" + pick({"00/00", "11/00", "ff/0A"});
    case Fault::kResponseDrop:
      return pick({"", " opcode=0x2a lun=3", " lun=0"});
    case Fault::kTmfReject:
      return pick({"", " result=5", " lun=7"});
    case Fault::kLoginReject:
      return pick({"", " status=0x0201", " status=0x03ff"});
    case Fault::kRedirect:
      return " address=" + pick({"192.0.2.7:3260", "[2001:db8::1]:3260 permanent=yes"});
    case Fault::kPduDelay:
    case Fault::kResponseDelay:
    case Fault::kTmfSlow:
    case Fault::kLoginSlow:
    case Fault::kWindowClose:
    case Fault::kR2tWithhold:
    case Fault::kStallWindow:
    case Fault::kReorderConnections:
      return " latency=" + pick({"5ms", "1us..7ms", "exp:3ms"});
    case Fault::kDrop:
      return pick({"", " how=close", " how=reset", " how=silence"});
    case Fault::kHalfOpen:
      return pick({"", " how=in", " how=out"});
    case Fault::kCorrupt:
      return pick({"", " how=below", " how=above"});
    case Fault::kFragment:
      return pick({"", " bytes=1", " bytes=512"});
    case Fault::kRate:
      return " bandwidth=" + pick({"1Gbit/s", "100kB/s"});
    case Fault::kFlap:
      return " up=3s down=500ms";
    case Fault::kResidual:
      return pick({"", " how=over bytes=7", " how=under lun=3"});
    case Fault::kAsync:
      return pick({"", " how=logout wait=0s", " how=negotiation wait=1min", " how=session"});
    case Fault::kR2tSmall:
      return pick({"", " bytes=513 opcode=0x2a"});
    case Fault::kAluaState:
      return pick({"", " how=transition", " how=standby", " how=unavailable"});
    case Fault::kUnitAttention:
    case Fault::kUnitNotReady:
    case Fault::kAborted:
      return pick({"", " code=04/0b"});
    default:
      return "";
  }
}

// Words that go with the fault, with any values that are possible.
std::string words_for(const Traits& row) {
  switch (row.fault) {
    case Fault::kTorn:
      return " keep=" + pick({"random", "first:3", "last:0", "0,2,5", "7"});
    case Fault::kFlip:
      return " bits=" + some_number(1).substr(0, 3) + " sticky=" + pick({"yes", "no"});
    case Fault::kMisdirectRead:
    case Fault::kMisdirectWrite:
      return " to=" + pick({"0x10", "drive:other", "drive:other@77"});
    case Fault::kMemberPartition:
      return " patience=" + some_time();
    case Fault::kMemberSlow:
    case Fault::kSlow:
      return " latency=" + pick({"5ms", "1us..7ms", "exp:3ms"}) +
             pick({"", " lanes=4", " bandwidth=40MB/s", " bandwidth=1Gbit/s"});
    case Fault::kLseGrowing:
      return " rate=" + pick({"0.125", "3", "1000000"}) + " cluster=4 threshold=9";
    case Fault::kStale:
      return " lba=7+9 event=then overlay=no";
    case Fault::kWrongId:
      return pick({" serial=A-1", " blocks=100", " block=4096", " block=512 serial=x"});
    case Fault::kSmart:
      return " wear=99 temperature=0";
    case Fault::kInsert:
      return " content=" + pick({"same", "other"});
    case Fault::kPowerCut:
    case Fault::kPowerCutAgain:
      return " loss=" + pick({"any", "order", "all", "none"});
    default:
      return words_at_path(row);
  }
}

std::string some_place(const Traits& row, bool coded) {
  const auto goes_with = [&row](Place::Kind kind) { return (row.places & bit(kind)) != 0; };
  if (goes_with(Place::Kind::kDrive)) {
    return " at=" + pick({"disk:3", "drive:d7", "drive", "enclosure", "enclosure:e"});
  }
  if (goes_with(Place::Kind::kLun)) {
    return " at=" + pick({"lun", "lun:db1", "lun:*-?.a"}) +
           (coded ? " opcode=" + pick({"0x28", "0x8a,0x2a,42", "0"}) : "") +
           pick({"", " initiator=*", " initiator=iqn.1993-08.org.debian:01:?*"});
  }
  if (goes_with(Place::Kind::kConnection)) {
    const bool of_one_kind = row.name.ends_with(".gap");
    return " at=" + pick({"conn", "conn:7.*", "session:iqn.?:a*", "link:[::1]:3260", "link"}) +
           (of_one_kind ? ""
                        : pick({"", " pdu=r2t,data-in", " dir=in", " pdu=data-out,nop-in dir=out",
                                " opcode=1,2"})) +
           (of_one_kind && row.fault != Fault::kR2tSnGap ? "" : pick({"", " lun=0", " lun=300"})) +
           pick({"", " initiator=*:a"});
  }
  if (goes_with(Place::Kind::kSession)) return " at=" + pick({"session", "session:iqn.?:a*"});
  if (goes_with(Place::Kind::kLink)) {
    return " at=" + pick({"link", "link:127.0.0.1:32*"}) +
           (row.fault == Fault::kBlackhole || row.fault == Fault::kFlap
                ? ""
                : pick({"", " initiator=*:a"}));
  }
  if (goes_with(Place::Kind::kMember)) return " at=member:" + pick({"m1", "0"});
  if (goes_with(Place::Kind::kMeta)) return " at=meta";
  if (goes_with(Place::Kind::kNvram)) return " at=" + pick({"nvram", "nvram:A"});
  return " at=" + pick({"enclosure", "enclosure:shelf-1"});
}

std::string some_rule() {
  const auto rows = all_traits();
  const Traits row = *rc::gen::elementOf(std::vector<Traits>(rows.begin(), rows.end()));
  const std::uint16_t path = bit(Place::Kind::kLun) | bit(Place::Kind::kSession) |
                             bit(Place::Kind::kConnection) | bit(Place::Kind::kLink);
  const bool at_path = (row.places & path) != 0 && (row.places & ~path) == 0;
  const bool at_meta = row.places == bit(Place::Kind::kMeta);
  const bool operations = !at_meta && row.operations != 0;
  const bool coded = at_path && flip_a_coin();
  std::string text = flip_a_coin() ? "rule" : "";
  text += fmt::format(" do={}", row.name) + words_for(row);
  text += some_place(row, coded);
  if (flip_a_coin()) text += " id=" + pick({"r7", "a.b_c-d", "X"});
  if (flip_a_coin()) text += " enabled=" + pick({"yes", "no"});
  if (operations && !coded && flip_a_coin()) text += " op=any";
  if (operations && row.fault != Fault::kStale && flip_a_coin()) {
    text += fmt::format(" lba={}", some_number());
    if (flip_a_coin()) text += "+" + some_number(1);
  }
  if (operations && flip_a_coin()) text += " length=" + some_bounds();
  if (operations && flip_a_coin()) text += " fua=" + pick({"yes", "no"});
  if (operations && !at_path && flip_a_coin()) {
    text += " origin=" + pick({"host", "rebuild,verify,clearing", "any"});
  }
  if (operations && flip_a_coin()) text += " depth=" + some_bounds();
  const bool numbered = flip_a_coin();
  if (numbered) text += " matches=" + pick({"1", "2,3,7", "5,1000000"});
  if (!numbered && flip_a_coin()) text += " after=" + some_number();
  if (!numbered && flip_a_coin()) text += " every=" + some_number(1);
  if (flip_a_coin()) text += " count=" + some_number(1);
  if (!numbered && flip_a_coin()) {
    text += " p=" + pick({"0", "1", "0.2", "1e-9", "0.3333333333333333"});
  }
  if (flip_a_coin()) text += " from=1ns";
  if (flip_a_coin()) text += " until=" + pick({"2ns", "90s", "36h"});
  if (row.fault != Fault::kStale && flip_a_coin()) {
    text += " event=" + pick({"rebuild.start", "rule:r9", "then"});
  }
  if (flip_a_coin()) text += " state=" + pick({"a", "!a", "a:7", "!a:-3,b", "a,b,c:1"});
  if (!at_path && flip_a_coin()) text += " within=tolerance";
  if (flip_a_coin()) text += " set=" + pick({"a", "a:0", "a:1,b:-9"});
  if (flip_a_coin()) text += " then=rule:r8";
  if (flip_a_coin() || row.fault == Fault::kStall || row.fault == Fault::kFailTransient ||
      row.fault == Fault::kMemberReturnStale || row.fault == Fault::kBlackhole) {
    text += " for=" + some_time();
  }
  return text;
}

}  // namespace

TEST_CASE("A rule is read as the catalogue writes it", "[fault][rule]") {
  const Rule rule = parsed(
      "rule id=r7 at=disk:3 op=write lba=0x1000+64 after=100 every=5 count=3 p=0.2\n"
      "     state=rebuilding do=torn keep=first:3 then=rule:r8 for=2s");
  CHECK(rule.id == "r7");
  CHECK(rule.at == Place{Place::Kind::kDrive, "3"});
  CHECK(rule.operations == bit(Operation::kWrite));
  CHECK(rule.lba == Extent{0x1000, 64});
  CHECK(rule.after == 100);
  CHECK(rule.every == 5);
  CHECK(rule.count == 3);
  CHECK(rule.probability == 0.2);
  CHECK(rule.state == std::vector<StateTest>{{.name = "rebuilding"}});
  CHECK(rule.fault == Fault::kTorn);
  CHECK(rule.keep == Keep{.kind = Keep::Kind::kFirst, .count = 3});
  CHECK(rule.then == "r8");
  CHECK(rule.duration == std::chrono::seconds(2));
  CHECK(print_rule(rule) ==
        "rule id=r7 at=drive:3 op=write lba=0x1000+64 after=100 every=5 count=3 p=0.2 "
        "state=rebuilding do=torn keep=first:3 then=rule:r8 for=2s");
}

TEST_CASE("Every fault of the table is read and printed", "[fault][rule]") {
  for (const Traits& row : all_traits()) {
    INFO(row.name);
    CHECK(fault_name(row.fault) == row.name);
  }
}

TEST_CASE("What is printed parses to the same rule", "[fault][rule]") {
  REQUIRE(rc::check([] {
    const std::string text = some_rule();
    RC_LOG() << text;
    const auto rule = parse_rule(text);
    if (!rule.has_value()) RC_FAIL(rule.error());
    const std::string printed = print_rule(*rule);
    RC_LOG() << printed;
    const auto again = parse_rule(printed);
    if (!again.has_value()) RC_FAIL(again.error());
    RC_ASSERT(*again == *rule);
    RC_ASSERT(print_rule(*again) == printed);
  }));
}

TEST_CASE("No text whatever makes the parser fail", "[fault][rule]") {
  REQUIRE(rc::check([](const std::string& text) {
    const auto rule = parse_rule(text);
    RC_ASSERT(rule.has_value() || !rule.error().empty());
    const auto value = parse_rule("at=drive do=slow latency=" + text);
    RC_ASSERT(value.has_value() || !value.error().empty());
  }));
}

TEST_CASE("A mistake names the word and what would be accepted", "[fault][rule]") {
  CHECK(refused("at=drive:3 do=explode") ==
        "do=explode: unknown fault; sandbay fault kinds lists them");
  CHECK(refused("at=drive:3 op=wirte do=fail") ==
        "op=wirte: read, write, flush, unmap, write_zeroes and advise are possible, several with "
        "commas, and any");
  CHECK(refused("at=controller:A do=fail") ==
        "at=controller:A: drive:NAME, drive (one or any of them), enclosure, enclosure:NAME, "
        "nvram, nvram:NAME, member:NAME and meta are possible, and, perhaps with * and ?, "
        "lun:VOLUME, session:INITIATOR, conn:TSIH.CID and link:PORTAL");
  CHECK(refused("at=member do=member.loss").starts_with("at=member: drive:NAME"));
  CHECK(refused("at=meta:x do=map.corrupt").starts_with("at=meta:x: drive:NAME"));
  CHECK(refused("at=conn:a/b do=drop").starts_with("at=conn:a/b: drive:NAME"));
  CHECK(refused("at=drive:3 do=fail zzzzzz=7") ==
        "zzzzzz: unknown word; sandbay-faults(7) lists them");
  CHECK(refused("at=link do=brop") == "do=brop: unknown fault; did you mean drop?");
  CHECK(refused("at=link do=drop evrey=3") == "evrey: unknown word; did you mean every=?");
  CHECK(refused("at=drive:3 do=fail p").starts_with("p: write p=VALUE"));
  CHECK(refused("at=drive:3 do=fail matches=3,2").starts_with("matches=3,2: ascending numbers"));
  CHECK(refused("at=drive:3 do=fail matches=0").starts_with("matches=0: ascending numbers"));
  CHECK(refused("at=drive:3 do=fail matches=3 p=0.5").starts_with("matches=: says alone"));
  CHECK(refused("at=drive:3 do=fail p=2") == "p=2: 0 to 1 is possible");
  CHECK(refused("at=drive:3 do=fail p=nan") == "p=nan: 0 to 1 is possible");
  CHECK(refused("at=drive:3 do=fail p=0.1 p=0.2") == "p=: stands twice");
  CHECK(refused("at=drive:3 do=fail for=5") ==
        "for=5: a time above 0s such as 500us, 5ms, 2s or 1min is possible, up to 87840h");
  CHECK(refused("at=drive:3 do=fail for=99999999999999h").starts_with("for="));
  CHECK(refused("at=drive:3 do=fail lba=7+0").starts_with("lba=7+0: an LBA and a count"));
  CHECK(refused("at=drive:3 do=fail lba=0xffffffffffffffff+2").starts_with("lba="));
  CHECK(refused("at=drive:3 do=fail length=9..8").starts_with("length=9..8: a number or a range"));
  CHECK(refused("at=drive:3 do=fail keep=first:3") ==
        "keep=: do=fail does not know it; it has no words of its own");
  CHECK(refused("at=drive:3 do=torn latency=5ms") ==
        "latency=: do=torn does not know it; its own words are overlay and keep");
  CHECK(refused("at=drive:3") == "do= is missing; a rule is such as at=drive:d3 do=fail");
  CHECK(refused("do=fail").starts_with("at= is missing"));
  CHECK(refused("").starts_with("at= is missing"));
  CHECK(refused("at=nvram do=fail") == "do=fail: at=drive and at=enclosure are possible");
}

TEST_CASE("A mistake in a rule between hosts and volumes is named", "[fault][rule]") {
  CHECK(refused("at=drive:3 do=busy") == "do=busy: at=lun:VOLUME is possible");
  CHECK(refused("at=lun do=check key=3").starts_with("do=check: say which sense data"));
  CHECK(refused("at=lun do=check key=16 code=11/00").starts_with("key=16: a sense key from 0"));
  CHECK(refused("at=lun do=check key=3 code=1100").starts_with("code=1100: ASC and ASCQ"));
  CHECK(refused("at=lun do=check key=3 code=11/0g").starts_with("code=11/0g: ASC and ASCQ"));
  CHECK(refused("at=lun do=busy opcode=256").starts_with("opcode=256: SCSI operation codes"));
  CHECK(refused("at=lun do=busy opcode=1 op=read") == "opcode=: leave out op=");
  CHECK(refused("at=lun do=busy origin=host").starts_with("at=lun: origin is of drives"));
  CHECK(refused("at=lun do=busy within=tolerance") == "at=lun: within is of drives");
  CHECK(refused("at=lun:a/b do=busy").starts_with("at=lun:a/b: drive:NAME"));
  CHECK(refused("at=drive do=nothing opcode=0x28").starts_with("opcode, initiator, pdu, dir and"));
  CHECK(refused("at=drive do=nothing dir=in").starts_with("opcode, initiator, pdu, dir and lun:"));
  CHECK(refused("at=lun do=nothing pdu=r2t") ==
        "at=lun: pdu, dir and lun are of session, conn and link");
  CHECK(refused("at=conn do=drop lba=7").starts_with("at=conn: op, lba, length, fua and depth"));
  CHECK(refused("at=conn do=busy") == "do=busy: at=lun:VOLUME is possible");
  CHECK(refused("at=lun do=drop") ==
        "do=drop: at=session:INITIATOR, at=conn:TSIH.CID and at=link:PORTAL are possible");
  CHECK(refused("at=link do=drop pdu=r2d").starts_with("pdu=r2d: nop-out, scsi-command"));
  CHECK(refused("at=link do=drop pdu=login-request").starts_with("pdu=login-request: nop-out"));
  CHECK(refused("at=link do=drop pdu=r2t dir=in").starts_with("do=drop: none of these PDUs"));
  CHECK(refused("at=link do=drop pdu=r2t opcode=1").starts_with("opcode=: is of scsi-command"));
  CHECK(refused("at=link do=redirect") == "do=redirect: say where to with address=");
  CHECK(refused("at=link do=redirect address=*").starts_with("address=*: an address such as"));
  CHECK(
      refused("at=link do=login.reject status=0x101").starts_with("status=0x101: a status class"));
  CHECK(refused("at=link do=login.slow").starts_with("do=login.slow: say how long with"));
  CHECK(refused("at=link do=tmf.lie") == "do=tmf.lie: at=session:INITIATOR is possible");
  CHECK(refused("at=session do=tmf.reject result=256") == "result=256: 0 to 255 is possible");
  CHECK(refused("at=session do=nop.ignore lun=1").starts_with("lun=: do=nop.ignore does not know"));
  CHECK(refused("at=session do=response.drop pdu=r2t").starts_with("pdu=: do=response.drop does"));
  CHECK(refused("at=link do=pdu.delay") == "do=pdu.delay: say how long with latency=");
  CHECK(refused("at=link do=drop how=slowly").starts_with("how=slowly: reset, close, silence"));
  CHECK(refused("at=link do=drop how=under") ==
        "how=: for do=drop reset, close and silence are possible");
  CHECK(refused("at=session do=async wait=1500ms").starts_with("wait=1500ms: whole seconds"));
  CHECK(refused("at=session do=residual bytes=0") == "bytes=0: 1 to 1048576 is possible");
  CHECK(refused("at=session do=window.close") == "do=window.close: say how long with latency=");
  CHECK(refused("at=link do=flap up=3s") == "up= and down=: say how long both last");
  CHECK(
      refused("at=link do=flap up=3s down=1s pdu=r2t").starts_with("pdu=: do=flap does not know"));
  CHECK(refused("at=link do=blackhole") == "do=blackhole: say how long it lasts with for=");
  CHECK(refused("at=link do=corrupt pdu=r2t").starts_with("do=corrupt: none of these PDUs"));
  CHECK(refused("at=session do=flap up=3s down=1s") == "do=flap: at=link:PORTAL is possible");
  CHECK(refused("at=link do=rate") == "do=rate: say how fast with bandwidth=");
  CHECK(refused("at=conn do=blackhole for=1s") == "do=blackhole: at=link:PORTAL is possible");
  CHECK(refused("at=session do=lun.vanish") == "do=lun.vanish: at=lun:VOLUME is possible");
  CHECK(refused("at=link do=drop lun=99999") == "lun=99999: 0 to 16383 is possible");
}

TEST_CASE("A mistake in a rule as a whole is named", "[fault][rule]") {
  CHECK(refused("at=drive:3 do=nvram.loss") == "do=nvram.loss: at=nvram is possible");
  CHECK(refused("at=drive:3 do=shelf.loss") == "do=shelf.loss: at=enclosure is possible");
  CHECK(refused("at=nvram do=nvram.loss op=write").starts_with("at=nvram: op, lba, length"));
  CHECK(refused("at=drive:3 op=read do=lost") == "op=read: do=lost strikes write");
  CHECK(refused("at=drive:3 do=stall").starts_with("do=stall: say how long"));
  CHECK(refused("at=drive:3 do=slow").starts_with("do=slow: say how slow"));
  CHECK(refused("at=drive:3 do=wrong.id").starts_with("do=wrong.id: say what changes"));
  CHECK(refused("at=drive:3 do=stale event=then").starts_with("do=stale: say with lba="));
  CHECK(refused("at=drive:3 do=stale lba=1").starts_with("do=stale: say when"));
  CHECK(refused("at=drive:3 do=fail from=3s until=2s").starts_with("until=: must be later"));
  CHECK(refused("id=r1 at=drive:3 do=fail then=rule:r1").starts_with("then=: names the rule"));
  CHECK(refused("at=drive:3 do=misdirect.write to=drive:3").starts_with("to=: names the drive"));
  CHECK(refused(std::string(5000, 'x')).starts_with("the rule has 5000 characters"));
  CHECK(refused("at=drive:\x01\x02 do=fail").find("drive:?") != std::string::npos);
}

// In a row of the table, which names tests that exist.
TEST_CASE("The README has every fault with its tests", "[fault]") {
  std::ifstream readme("src/fault/README.md");
  REQUIRE(readme.is_open());
  std::string table;
  for (std::string line; std::getline(readme, line);) {
    if (line.starts_with("| `")) table += line + "\n";
  }
  for (const Traits& row : all_traits()) {
    INFO(row.name);
    CHECK(table.find(fmt::format("`{}`", row.name)) != std::string::npos);
  }
  std::size_t named = 0;
  for (const std::string_view row : parts(table, '\n')) {
    if (row.empty()) continue;
    const auto columns = parts(row, '|');
    REQUIRE(columns.size() == 6);
    for (const auto& [column, folders] :
         {std::pair{3, std::vector<std::string>{"tests/unit/fault/", "tests/unit/group/",
                                                "tests/unit/iscsi/"}},
          std::pair{4, std::vector<std::string>{"tests/e2e/"}}}) {
      for (std::string_view name : parts(columns.at(static_cast<std::size_t>(column)), ',')) {
        name.remove_prefix(std::min(name.find_first_not_of(' '), name.size()));
        name = name.substr(0, name.find(' '));
        INFO(name);
        CHECK(std::ranges::any_of(folders, [name](const std::string& folder) {
          return std::filesystem::exists(folder + std::string(name));
        }));
        ++named;
      }
    }
  }
  CHECK(named > 20);
}

// The manual has the sentences; their words are those of rules.
TEST_CASE("Each fault says what it does, with words that it knows", "[fault]") {
  for (const Traits& row : all_traits()) {
    INFO(row.name);
    CHECK(row.about.ends_with('.'));
    const bool other_rule = row.about.find("do=") != std::string_view::npos;
    for (std::string_view token : parts(row.about, ' ')) {
      token.remove_prefix(std::min(token.find_first_not_of('('), token.size()));
      const std::size_t sign = token.find('=');
      if (sign == std::string_view::npos || token.starts_with("DataSequence")) continue;
      INFO(token);
      const auto word = std::ranges::find(rule_words(), token.substr(0, sign), &Word::name);
      REQUIRE(word != rule_words().end());
      CHECK((other_rule || word->knows(row.fault)));
    }
  }
}

TEST_CASE("Values of rules go to text and back", "[fault][rule]") {
  CHECK(to_time("1500us") == std::chrono::microseconds(1500));
  CHECK(time_text(std::chrono::microseconds(1500)) == "1500us");
  CHECK(time_text(std::chrono::minutes(120)) == "2h");
  CHECK(time_text(Duration::zero()) == "0s");
  CHECK(to_rate("1Gbit/s") == 125'000'000);
  CHECK(to_rate("8KiB/s") == 8192);
  CHECK_FALSE(to_rate("99999999999GiB/s").has_value());
  CHECK_FALSE(to_number("0x").has_value());
  CHECK_FALSE(to_number("-1").has_value());
  CHECK_FALSE(to_number("18446744073709551616").has_value());
  CHECK_FALSE(to_real("-0").has_value());
  CHECK_FALSE(to_bounds("..").has_value());
  CHECK(to_bounds("..9") == Bounds{0, 9});
  CHECK_FALSE(is_name(std::string(65, 'a')));
}

}  // namespace sandbay::fault
