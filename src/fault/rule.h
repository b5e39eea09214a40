// A fault rule: where, when, what and how long, as a value; its text form and back.
//
//   rule id=r7 at=drive:3 op=write lba=0x1000+64 after=100 every=5 count=3 p=0.2
//        state=rebuilding do=torn keep=first:3 then=rule:r8 for=2s
//
// parse_rule(print_rule(rule)) is the same rule. man/sandbay-faults.7 explains every word; words
// that a fault does not know are refused, never ignored.
#pragma once

#include <cstdint>
#include <expected>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "block/block_device.h"
#include "runtime/clock.h"
#include "runtime/random.h"

namespace sandbay::fault {

inline constexpr std::size_t kLongestRule = 4096;  // Characters.
inline constexpr std::size_t kLongestName = 64;    // Ids, drives, events, variables.

enum class Fault : std::uint8_t {
  kNothing,  // Only counts, sets variables and starts its follow-up.
  kHold,     // A breakpoint: the operation goes on when released.
  // Drives.
  kFail,
  kFailTransient,
  kPull,
  kInsert,
  kLse,
  kLseGrowing,
  kWriteError,
  kRecovered,
  kSlow,
  kStall,
  kHang,
  kFlip,
  kMisdirectWrite,
  kMisdirectRead,
  kLost,
  kTorn,
  kStale,
  kNoFlush,
  kReorder,
  kSmart,
  kFull,
  kReadOnly,
  kWrongId,
  // Enclosures and power.
  kShelfLoss,
  kPsu,
  kFan,
  kTemp,
  kPowerCut,
  kPowerCutAgain,
  // Non-volatile memory.
  kBatteryLow,
  kNvramLoss,
  kNvramPage,
  kNvramStale,
  kNvramBitrot,
  // Members of pools.
  kMemberLoss,
  kMemberPartition,
  kMemberSlow,
  kMemberReturnStale,
  kRebalanceKill,
  // Metadata.
  kMapCorrupt,
  // Answers of LUNs.
  kCheck,
  kBusy,
  kTaskSetFull,
  kReservationConflict,
  kUnitAttention,
  kUnitNotReady,
  kAborted,
  kLunVanish,
  kAluaState,
  // Connections and their PDUs.
  kPduDrop,
  kPduDelay,
  kDigestHeader,
  kDigestData,
  kDrop,
  kPduDup,
  kPduTruncate,
  kStatSnGap,
  kDataSnGap,
  kR2tSnGap,
  // Links.
  kFlap,
  kRate,
  kHalfOpen,
  kStallWindow,
  kFragment,
  kCorrupt,
  kReorderConnections,
  kBlackhole,
  // Answers of sessions, and logins.
  kResponseDelay,
  kResponseDrop,
  kTmfReject,
  kTmfSlow,
  kTmfLie,
  kNopIgnore,
  kResidual,
  kAsync,
  kWindowClose,
  kR2tWithhold,
  kR2tSmall,
  kR2tDisorder,
  kLoginReject,
  kLoginSlow,
  kLoginStall,
  kRedirect,
  kNegoOdd,
  kCounterNearWrap,
};
inline constexpr std::size_t kFaultCount = static_cast<std::size_t>(Fault::kCounterNearWrap) + 1;

std::string_view fault_name(Fault fault);  // As a rule writes it: "misdirect.write".

inline constexpr std::size_t kPlaceKinds = 9;

// at=drive:NAME, drive (any), enclosure[:NAME], nvram[:NAME], member:NAME, meta, and between hosts
// and volumes lun[:VOLUME], session[:INITIATOR], conn[:TSIH.CID] and link[:PORTAL]. An empty name
// means all of them; those of the last four may have * and ?.
struct Place {
  enum class Kind : std::uint8_t {
    kDrive,
    kEnclosure,
    kNvram,
    kMember,
    kMeta,
    kLun,
    kSession,
    kConnection,
    kLink
  };
  Kind kind = Kind::kDrive;
  std::string name;
  bool operator==(const Place&) const = default;
};

std::string place_text(const Place& place);  // As a rule writes it: "drive:d0".

// Both ends included.
struct Bounds {
  std::uint64_t least = 0;
  std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  bool contains(std::uint64_t value) const noexcept { return value >= least && value <= most; }
  bool operator==(const Bounds&) const = default;
};

// state=NAME (not 0), state=!NAME (0), state=NAME:VALUE. What was never set is 0.
struct StateTest {
  std::string name;
  bool negated = false;
  std::optional<std::int64_t> value;
  bool operator==(const StateTest&) const = default;
};

struct StateChange {
  std::string name;
  std::int64_t value = 1;
  bool operator==(const StateChange&) const = default;
};

// Which blocks of a torn write persist. A list counts from the start of the write.
struct Keep {
  enum class Kind : std::uint8_t { kRandom, kFirst, kLast, kList };
  Kind kind = Kind::kRandom;
  std::uint64_t count = 0;
  std::vector<std::uint64_t> blocks;
  bool operator==(const Keep&) const = default;
};

// latency=5ms, latency=5ms..20ms (uniform), latency=exp:5ms (exponential with that mean).
struct Latency {
  bool exponential = false;
  Duration least{};
  Duration most{};
  bool operator==(const Latency&) const = default;
};

// What a power cut leaves of what was not flushed; see VolatileCache.
enum class PowerLoss : std::uint8_t {
  kAnyOrder,    // Each write is kept, dropped or torn by itself, in any order.
  kInOrder,     // A prefix of the writes is kept, the next is torn.
  kEverything,  // All of it is lost.
  kNothing,     // None of it is lost.
};

enum class FlipPlace : std::uint8_t { kRest, kRead, kWrite };

// how=: the way in which a fault strikes that knows several; without it, its first one here.
enum class Way : std::uint8_t {
  kFirst,
  kReset,  // do=drop
  kClose,
  kSilence,
  kIn,  // do=half-open
  kOut,
  kBelow,  // do=corrupt
  kAbove,
  kUnder,  // do=residual
  kOver,
  kTransition,  // do=alua.state
  kStandby,
  kUnavailable,
  kLogout,  // do=async, in the order of AsyncEvent (RFC 7143, section 11.9.1)
  kConnection,
  kSession,
  kNegotiation,
};

struct Rule {
  std::string id;  // Empty: the engine chooses one.
  Place at;
  bool enabled = true;

  // Match. An operation matches if all of them do.
  std::uint8_t operations = 0;  // One bit an Operation; 0: any.
  std::optional<Extent> lba;    // Overlap. For lse, flip, stale and growing defects: where.
  Bounds length{};              // Blocks.
  std::optional<bool> fua;
  std::uint8_t origins = 0;  // One bit an Origin; 0: any.
  Bounds depth{};  // Operations in flight at the drive, or commands in the LUN's task set,
                   // this one included.
  std::vector<std::uint8_t> opcodes;  // SCSI operation codes, ascending; empty: any.
  std::string initiator;              // Its name, perhaps with * and ?; empty: any.
  std::uint64_t pdus = 0;             // One bit an opcode of RFC 7143, section 11.2.1.2; 0: any.
  std::optional<bool> outgoing;       // PDUs that the target sends, or that it receives.
  std::optional<std::uint64_t> lun;   // By its number.

  // When.
  std::uint64_t after = 0;  // Matches that pass first.
  std::uint64_t every = 1;  // Then every n-th.
  std::uint64_t count = 0;  // How often it fires; 0: without limit.
  double probability = 1;
  std::vector<std::uint64_t> matches;  // Ascending: exactly these fire. Without the three above.
  Duration from{};                     // Since the engine started.
  std::optional<Duration> until;
  std::string event;  // Nothing matches before it; "then": fired by another's `then`.
  std::vector<StateTest> state;

  // What.
  Fault fault = Fault::kNothing;
  bool overlay = true;  // Damage is kept beside the stored data, which stay pristine.
  bool within_tolerance = false;
  Keep keep{};
  std::uint64_t bits = 1;
  FlipPlace where = FlipPlace::kRest;
  bool sticky = false;
  std::optional<Lba> to;
  std::string to_drive;
  Latency latency{};
  std::uint64_t lanes = 0;      // 0: without limit.
  std::uint64_t bandwidth = 0;  // Bytes a second; 0: without limit.
  Duration patience{};          // Of a partition; 0: the engine's.
  double rate = 1;              // Defects a second.
  std::uint64_t cluster = 8;    // Blocks that neighbouring defects spread over.
  std::uint64_t threshold = 0;  // Defects that make a predicted failure; 0: never.
  bool other_content = false;
  std::string serial;
  std::uint64_t block_count = 0;
  std::uint64_t block_bytes = 0;
  std::optional<std::uint64_t> wear;         // Percent.
  std::optional<std::uint64_t> temperature;  // Degrees Celsius.
  PowerLoss loss = PowerLoss::kAnyOrder;
  std::optional<std::uint8_t> sense_key;
  std::optional<std::uint16_t> sense_code;  // ASC, and ASCQ in the lower byte.
  Way way = Way::kFirst;
  std::uint64_t bytes = 0;  // do=residual, r2t.small, fragment; 0: the fault's own, see bytes_of().
  Duration time_to_wait = std::chrono::seconds(3);  // do=async: its time, in whole seconds.
  std::uint64_t result = 255;                       // do=tmf.reject: RFC 7143, section 11.6.1.
  Duration up{};                                    // do=flap
  Duration down{};
  std::uint64_t status = 0x0301;  // do=login.reject: section 11.13.5.
  std::string address;            // do=redirect: where to log in instead.
  bool permanent = false;

  // How long, and what then.
  Duration duration{};  // for=; 0: no time is set.
  std::vector<StateChange> set;
  std::string then;  // The id of the rule that follows.

  bool operator==(const Rule&) const = default;
};

// Fails with one line that names the word and says what would be accepted.
std::expected<Rule, std::string> parse_rule(std::string_view text);
// Words in the order of the table, without those that have their default.
std::string print_rule(const Rule& rule);

// Between hosts and volumes: sites decide there, see site.h.
inline bool of_path(const Place& place) { return place.kind >= Place::Kind::kLun; }
// Where PDUs pass.
inline bool of_pdus(const Place& place) { return place.kind > Place::Kind::kLun; }

// One of the times that a latency stands for.
Duration draw(const Latency& latency, Random& random);

// A rule with p=0 or enabled=no changes nothing.
inline bool inert(const Rule& rule) { return !rule.enabled || rule.probability == 0; }
// Whether the rule looks at single operations: it names one of their properties, or its fault
// strikes nothing else. Others fire by themselves: at once, or at their time, event or state.
bool looks_at_operations(const Rule& rule);

}  // namespace sandbay::fault
