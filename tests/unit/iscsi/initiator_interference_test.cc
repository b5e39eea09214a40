// PDUs that somebody loses, delays or damages at our initiator, both ways: commands end right or
// with an honest error, and what was acknowledged is what is read.
#include <catch2/catch.hpp>

#include <set>

#include "iscsi/initiator.h"
#include "runtime/random.h"
#include "scripted_target.h"
#include "target_bench.h"

namespace sandbay::iscsi::test {
namespace {

using Fate = PduInterference::Fate;
using Verdict = PduInterference::Verdict;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

// Asks a function about each PDU.
class Asking final : public Interferences {
 public:
  using Judge = std::function<Verdict(Opcode opcode, bool has_data)>;
  explicit Asking(Judge judge) : judge_(std::move(judge)) {}

  std::unique_ptr<PduInterference> of_connection(const ConnectionFacts& facts) override {
    CHECK(facts.at_initiator);
    ++connections;
    return std::make_unique<One>(*this);
  }
  std::unique_ptr<SessionInterference> of_session(const std::string&) override { return nullptr; }
  Attempt judge_attempt(const AttemptFacts&) override { return {}; }
  Login judge_login(const LoginFacts&) override { return {}; }

  unsigned connections = 0;
  unsigned asked = 0;

 private:
  class One final : public PduInterference {
   public:
    explicit One(Asking& owner) : PduInterference(owner.quiet_), owner_(owner) {}
    Verdict judge(BhsView bhs, Passing passing) override {
      const Opcode opcode = opcode_of(bhs);
      const bool from_target = (static_cast<unsigned>(opcode) & 0x20U) != 0;
      CHECK(passing.sent != from_target);
      ++owner_.asked;
      return owner_.judge_(opcode, data_segment_length(bhs) > 0);
    }

   private:
    Asking& owner_;
  };
  Judge judge_;
  bool quiet_ = false;
};

using Session = std::unique_ptr<InitiatorSession>;

Task<Session> log_in_through(Bench& bench, Interferences& interferences) {
  InitiatorOptions options{.endpoint = bench.endpoint(),
                           .initiator_name = "iqn.2026-11.org.sandbay:ours",
                           .target_name = kBenchTarget,
                           .connections = 2,
                           .keys = {{"MaxRecvDataSegmentLength", "2048"},
                                    {"ImmediateData", "No"},
                                    {"InitialR2T", "Yes"}},
                           .interferences = &interferences};
  options.connection_options.resize(2);
  for (auto& each : options.connection_options) {
    each.keys = {{"HeaderDigest", "CRC32C"}, {"DataDigest", "CRC32C"}};
  }
  LoginResult result = co_await InitiatorSession::login(std::move(options));
  if (!result.has_value()) FAIL_CHECK(result.error().message);
  co_return result.has_value() ? std::move(*result) : nullptr;
}

ScsiRequest request_of(std::uint8_t operation, std::uint32_t lba, std::uint32_t blocks) {
  ScsiRequest request;
  request.cdb[0] = std::byte{operation};
  put_big_endian<std::uint32_t>(request.cdb, 2, lba);
  put_big_endian<std::uint16_t>(request.cdb, 7, static_cast<std::uint16_t>(blocks));
  request.timeout = minutes(2);
  return request;
}

constexpr std::uint32_t kBlocks = 12;

Task<ScsiResult> put(InitiatorSession& session, std::uint32_t lba, unsigned seed) {
  const Bytes data = pattern_of(kBlocks * kBlock, seed);
  ScsiRequest request = request_of(0x2A, lba, kBlocks);
  request.data_out = buffer_of(data.size());
  request.data_out.copy_from(data);
  const InitiatorSession::Reply reply = co_await session.execute(std::move(request));
  co_return reply.result;
}

// The data of a read that succeeds.
Task<std::optional<Bytes>> get(InitiatorSession& session, std::uint32_t lba) {
  ScsiRequest request = request_of(0x28, lba, kBlocks);
  request.data_in = buffer_of(std::size_t{kBlocks} * kBlock);
  const InitiatorSession::Reply reply = co_await session.execute(std::move(request));
  if (!reply.result.whole()) co_return std::nullopt;
  Bytes bytes(reply.data_in.byte_count());
  reply.data_in.copy_to(bytes);
  co_return bytes;
}

Task<void> take_ours(InitiatorSession& session) {
  for (int i = 0; i < 3; ++i) (void)co_await session.execute(ScsiRequest{.timeout = minutes(2)});
}

// Any fate at any PDU, now and then.
Task<void> any_fate(Bench& bench) {
  Random random(bench.world().executors().size() * 7);
  bool on = false;
  const auto judge = [&](Opcode opcode, bool has_data) -> Verdict {
    if (!on || !random.chance(0.01)) return {};
    constexpr std::array kFates{Fate::kLose,       Fate::kHeaderDigest, Fate::kTwice, Fate::kCut,
                                Fate::kDataDigest, Fate::kDamaged,      Fate::kReset, Fate::kClose};
    const bool from_target = (static_cast<unsigned>(opcode) & 0x20U) != 0;
    Verdict verdict{.fate = kFates[random.below(kFates.size())]};
    const bool of_data = verdict.fate == Fate::kDataDigest || verdict.fate == Fate::kDamaged;
    // At ErrorRecoveryLevel 0 nobody asks for a lost R2T or Data-In again before time is up.
    if ((of_data && !has_data) || (verdict.fate == Fate::kLose && !from_target)) {
      verdict.fate = Fate::kPass;
      verdict.delay = milliseconds(random.below(3000));
      verdict.piece_bytes = static_cast<std::uint16_t>(random.below(100));
    }
    return verdict;
  };
  Asking asking(judge);
  const Session session = co_await log_in_through(bench, asking);
  co_await take_ours(*session);
  on = true;
  std::map<std::uint32_t, std::set<unsigned>> possible;  // Seeds of the patterns, by LBA.
  unsigned good = 0;
  for (unsigned seed = 1; seed <= 400; ++seed) {
    const auto lba = static_cast<std::uint32_t>(random.below(4) * 100);
    std::set<unsigned>& here = possible[lba];
    if (random.chance(0.5) || here.empty()) {
      const ScsiResult result = co_await put(*session, lba, seed);
      if (result.whole()) here.clear();
      here.insert(seed);
      good += result.whole() ? 1 : 0;
      if (here.size() > 1) continue;
    }
    const std::optional<Bytes> bytes = co_await get(*session, lba);
    if (!bytes) continue;
    ++good;
    const bool right = std::ranges::any_of(
        here, [&](unsigned each) { return *bytes == pattern_of(bytes->size(), each); });
    CHECK(right);
  }
  CHECK(good > 300);
  CHECK(asking.connections > 2);
  on = false;
  co_await session->close();
}

// Data with a wrong bit, both ways, that no digest finds; and what is late.
Task<void> single_fates(Bench& bench) {
  Verdict next;
  Opcode which = Opcode::kDataIn;
  const auto judge = [&](Opcode opcode, bool) -> Verdict {
    return opcode == which ? std::exchange(next, Verdict{}) : Verdict{};
  };
  Asking asking(judge);
  const Session session = co_await log_in_through(bench, asking);
  co_await take_ours(*session);
  ScsiResult result = co_await put(*session, 0, 1);
  CHECK(result.whole());
  const Bytes data = pattern_of(kBlocks * kBlock, 1);
  Bytes wrong = data;
  wrong[1024] ^= std::byte{1};
  next = {.fate = Fate::kAltered};
  std::optional<Bytes> bytes = co_await get(*session, 0);
  CHECK(bytes == wrong);
  bytes = co_await get(*session, 0);
  CHECK(bytes == data);
  which = Opcode::kDataOut;
  next = {.fate = Fate::kAltered};
  result = co_await put(*session, 0, 1);
  CHECK(result.whole());
  bytes = co_await get(*session, 0);
  wrong = data;
  wrong[wrong.size() / 2] ^= std::byte{1};  // One Data-Out.
  CHECK(bytes == wrong);
  for (const Opcode opcode : {Opcode::kScsiCommand, Opcode::kDataIn, Opcode::kDataOut}) {
    which = opcode;
    next = {.delay = seconds(4), .piece_bytes = 3};
    const TimePoint begin = bench.now();
    result = co_await put(*session, 0, 2);
    bytes = co_await get(*session, 0);
    CHECK(bytes == pattern_of(kBlocks * kBlock, 2));
    CHECK(bench.now() - begin >= seconds(4));
    CHECK(bench.now() - begin < seconds(6));
  }
  // No end waits for it.
  which = Opcode::kScsiResponse;
  next = {.delay = std::chrono::hours(9)};
  spawn([](InitiatorSession& on) -> Task<void> { (void)co_await put(on, 0, 3); }(*session));
  co_await bench.sleep(seconds(1));
  const TimePoint begin = bench.now();
  co_await session->close();
  CHECK(bench.now() - begin < minutes(1));
}

void with_our_initiator(Task<void> (*test)(Bench&)) {
  for (const unsigned executors : {1U, 2U}) {
    INFO("executors: " << executors);
    auto bench = std::make_unique<Bench>(BenchOptions{.executors = executors});
    const bool ended =
        bench->world().run([&] { return bench->whole(test); }, std::chrono::hours(10));
    if (!ended) static_cast<void>(bench.release());
    REQUIRE(ended);
  }
}

}  // namespace

TEST_CASE("our initiator bears any fate of PDUs", "[iscsi]") { with_our_initiator(any_fate); }
TEST_CASE("our initiator's PDUs are altered and late", "[iscsi]") {
  with_our_initiator(single_fates);
}

}  // namespace sandbay::iscsi::test
