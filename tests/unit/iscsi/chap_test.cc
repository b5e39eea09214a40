// CHAP: responses against the hashes' definition, both sides against each other with every digest,
// and the attacks that RFC 7143 section 9.2.1 speaks of.
#include "iscsi/chap.h"

#include <rapidcheck.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "base64.h"

namespace sandbay::iscsi {
namespace {

using Pairs = std::vector<KeyValue>;

// Counts up, so that challenges differ and repeat from run to run.
RandomSource counting() {
  return [next = std::uint8_t{1}](std::span<std::byte> bytes) mutable {
    for (std::byte& byte : bytes) byte = std::byte(next);
    ++next;
  };
}

const ChapCredential kAlice{.user = "alice", .secret = "alice's secret 1"};
const ChapCredential kStorage{.user = "storage", .secret = "storage's secret"};

std::vector<ChapAlgorithm> all() {
  const auto algorithms = all_chap_algorithms();
  return {algorithms.begin(), algorithms.end()};
}

ChapTarget::Options target_options(std::optional<ChapCredential> mutual = std::nullopt) {
  return {.credentials = {kAlice}, .mutual = std::move(mutual), .algorithms = all()};
}

std::string value_of(const Pairs& pairs, std::string_view key) {
  const auto found = std::ranges::find(pairs, key, &KeyValue::key);
  return found == pairs.end() ? "" : found->value;
}

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string response_to(const Pairs& challenge, std::string_view secret, ChapAlgorithm algorithm) {
  const auto identifier = parse_number(value_of(challenge, "CHAP_I")).value();
  const auto bytes = parse_binary(value_of(challenge, "CHAP_C"), 1024).value();
  return format_hexadecimal(
      chap_response(algorithm, static_cast<std::uint8_t>(identifier), secret, bytes));
}

}  // namespace

// Computed with sha*sum and openssl over the bytes 01, "secret", "challenge".
TEST_CASE("The response is the hash of identifier, secret and challenge", "[iscsi][chap]") {
  const auto response = [](ChapAlgorithm algorithm) {
    return format_hexadecimal(chap_response(algorithm, 1, "secret", bytes_of("challenge")));
  };
  CHECK(response(ChapAlgorithm::kMd5) == "0x46e47770030e2b4e26a0db72a7efec00");
  CHECK(response(ChapAlgorithm::kSha1) == "0x011f25d29fe1baaced569c0d7e4878e40ddb7d7e");
  CHECK(response(ChapAlgorithm::kSha256) ==
        "0x2dfa0526f4764864b7c3c5bc6596bcead3d8dbd984f4fc1d9f330299f0beced4");
  CHECK(response(ChapAlgorithm::kSha3_256) ==
        "0x9444877c4dff778ed2add0f102dcd561e11944e7e948ee1b89508451a9e680ad");
}

TEST_CASE("Digests have names and numbers", "[iscsi][chap]") {
  CHECK(chap_algorithm_from("MD5") == ChapAlgorithm::kMd5);
  CHECK(chap_algorithm_from("sha-1") == ChapAlgorithm::kSha1);
  CHECK(chap_algorithm_from("SHA256") == ChapAlgorithm::kSha256);
  CHECK(chap_algorithm_from("SHA3-256") == ChapAlgorithm::kSha3_256);
  CHECK(chap_algorithm_from("8") == ChapAlgorithm::kSha3_256);
  CHECK_FALSE(chap_algorithm_from("SHA512").has_value());
  const std::vector<std::string> names{"MD5", "sha1", "5"};
  CHECK(chap_algorithms_from(names).value() ==
        std::vector{ChapAlgorithm::kMd5, ChapAlgorithm::kSha1});
  CHECK(chap_algorithms_from({}).value() == all());
  const std::vector<std::string> bad{"CRC"};
  CHECK(chap_algorithms_from(bad).error() ==
        "\"CRC\" is not a CHAP digest; MD5, SHA1, SHA-256 and SHA3-256 are");
}

TEST_CASE("Initiator and target prove themselves with every digest", "[iscsi][chap]") {
  for (const ChapAlgorithm algorithm : all()) {
    for (const bool mutual : {false, true}) {
      CAPTURE(name_of(algorithm), mutual);
      ChallengeRegistry target_side;
      ChallengeRegistry initiator_side;
      const auto proof = mutual ? std::optional(kStorage) : std::nullopt;
      ChapTarget target(target_options(proof), target_side, counting());
      ChapInitiator initiator({.credential = kAlice, .mutual = proof, .algorithms = {algorithm}},
                              initiator_side, openssl_random());
      const auto challenge = target.receive(initiator.start());
      REQUIRE(challenge.has_value());
      CHECK(parse_number(value_of(*challenge, "CHAP_A")) == static_cast<unsigned>(algorithm));
      const auto response = initiator.receive(*challenge);
      REQUIRE(response.has_value());
      CHECK(initiator.ready_to_transit());
      const auto last = target.receive(*response);
      REQUIRE(last.has_value());
      CHECK(target.done());
      CHECK(target.user() == "alice");
      CHECK(last->empty() == !mutual);
      if (mutual) CHECK(initiator.receive(*last).has_value());
      CHECK(initiator.done());
    }
  }
}

TEST_CASE("The target takes the strongest digest that is offered and allowed", "[iscsi][chap]") {
  ChallengeRegistry registry;
  const auto chosen = [&](std::vector<ChapAlgorithm> allowed, const char* offered) {
    auto options = target_options();
    options.algorithms = std::move(allowed);
    ChapTarget target(std::move(options), registry, openssl_random());
    const auto reply = target.receive(Pairs{{"CHAP_A", offered}});
    return reply.has_value() ? value_of(*reply, "CHAP_A") : std::string(describe(reply.error()));
  };
  CHECK(chosen(all(), "5,6,7,8") == "8");
  CHECK(chosen(all(), "5,7") == "7");
  CHECK(chosen(all(), "99,5") == "5");
  CHECK(chosen({ChapAlgorithm::kMd5}, "8,7,6,5") == "5");
  CHECK(chosen({ChapAlgorithm::kSha1, ChapAlgorithm::kSha256}, "7,6") == "6");
  CHECK(chosen({ChapAlgorithm::kSha256}, "5") == "no CHAP digest in common");
  CHECK(chosen(all(), "") == "no CHAP digest in common");
}

TEST_CASE("Wrong names, secrets and keys do not get in", "[iscsi][chap]") {
  ChallengeRegistry registry;
  ChapTarget target(target_options(), registry, counting());
  const auto challenge = target.receive(Pairs{{"CHAP_A", "5"}}).value();
  const std::string right = response_to(challenge, kAlice.secret, ChapAlgorithm::kMd5);
  const std::string wrong = response_to(challenge, "guess", ChapAlgorithm::kMd5);
  const auto failure = [&](Pairs keys) { return target.receive(keys).error(); };
  SECTION("wrong secret") {
    CHECK(failure({{"CHAP_N", "alice"}, {"CHAP_R", wrong}}) == ChapFailure::kWrongResponse);
  }
  SECTION("the right response of another user") {
    CHECK(failure({{"CHAP_N", "bob"}, {"CHAP_R", right}}) == ChapFailure::kUnknownUser);
  }
  SECTION("a part of the response") {
    CHECK(failure({{"CHAP_N", "alice"}, {"CHAP_R", right.substr(0, 10)}}) ==
          ChapFailure::kWrongResponse);
  }
  SECTION("no response: not answering is no way round") {
    CHECK(failure({{"CHAP_N", "alice"}}) == ChapFailure::kMissingKey);
    CHECK(failure({{"CHAP_R", right}}) == ChapFailure::kMissingKey);
    CHECK(failure({}) == ChapFailure::kMissingKey);
  }
  SECTION("what cannot be decoded, or is too long") {
    CHECK(failure({{"CHAP_N", "alice"}, {"CHAP_R", "1234"}}) == ChapFailure::kBadValue);
    CHECK(failure({{"CHAP_N", "alice"}, {"CHAP_R", "0x" + std::string(2050, 'a')}}) ==
          ChapFailure::kBadValue);
    CHECK(failure({{"CHAP_N", ""}, {"CHAP_R", right}}) == ChapFailure::kBadValue);
  }
  SECTION("base64 and capital hexadecimal are good") {
    const auto bytes = parse_binary(right, 1024).value();
    CHECK(target.receive(Pairs{{"CHAP_N", "alice"}, {"CHAP_R", format_base64(bytes)}}).has_value());
  }
  SECTION("after success there is nothing to repeat") {
    CHECK(target.receive(Pairs{{"CHAP_N", "alice"}, {"CHAP_R", right}}).has_value());
    CHECK_FALSE(target.receive(Pairs{{"CHAP_N", "alice"}, {"CHAP_R", right}}).has_value());
  }
}

TEST_CASE("A reflected challenge is refused on this and every other connection", "[iscsi][chap]") {
  ChallengeRegistry registry;
  auto random = counting();
  ChapTarget first(target_options(kStorage), registry, random);
  const auto on_first = first.receive(Pairs{{"CHAP_A", "5"}}).value();
  const auto answer_with = [&](ChapTarget& target, const Pairs& own, const Pairs& reflected) {
    return target.receive(Pairs{{"CHAP_N", "alice"},
                                {"CHAP_R", response_to(own, kAlice.secret, ChapAlgorithm::kMd5)},
                                {"CHAP_I", value_of(reflected, "CHAP_I")},
                                {"CHAP_C", value_of(reflected, "CHAP_C")}});
  };
  SECTION("on this connection") {
    CHECK(answer_with(first, on_first, on_first).error() == ChapFailure::kReflection);
  }
  SECTION("on another") {
    ChapTarget second(target_options(kStorage), registry, openssl_random());
    const auto on_second = second.receive(Pairs{{"CHAP_A", "5"}}).value();
    CHECK(answer_with(second, on_second, on_first).error() == ChapFailure::kReflection);
    CHECK(answer_with(first, on_first, on_second).error() == ChapFailure::kReflection);
  }
  SECTION("in another encoding") {
    const auto bytes = parse_binary(value_of(on_first, "CHAP_C"), 1024).value();
    Pairs reflected{{"CHAP_I", "7"}, {"CHAP_C", format_base64(bytes)}};
    CHECK(answer_with(first, on_first, reflected).error() == ChapFailure::kReflection);
  }
  SECTION("by a rogue target, to an initiator that issued it elsewhere") {
    ChallengeRegistry own;
    ChapInitiator::Options options{
        .credential = kAlice, .mutual = kStorage, .algorithms = {ChapAlgorithm::kMd5}};
    ChapInitiator one(options, own, openssl_random());
    ChapInitiator two(options, own, openssl_random());
    const auto sent = one.receive(Pairs{{"CHAP_A", "5"}, {"CHAP_I", "1"}, {"CHAP_C", "0x0102"}});
    const Pairs back{{"CHAP_A", "5"}, {"CHAP_I", "2"}, {"CHAP_C", value_of(*sent, "CHAP_C")}};
    CHECK(two.receive(back).error() == ChapFailure::kReflection);
  }
}

TEST_CASE("Challenges are forgotten with their logins", "[iscsi][chap]") {
  ChallengeRegistry registry;
  std::vector<std::byte> challenge;
  {
    ChapTarget target(target_options(), registry, counting());
    const auto reply = target.receive(Pairs{{"CHAP_A", "5"}}).value();
    challenge = parse_binary(value_of(reply, "CHAP_C"), 1024).value();
    CHECK(registry.contains(challenge));
    CHECK_FALSE(registry.add(challenge).second);
    CHECK(registry.contains(challenge));
  }
  CHECK_FALSE(registry.contains(challenge));
}

TEST_CASE("One secret for both directions is refused by both sides", "[iscsi][chap]") {
  ChallengeRegistry registry;
  const ChapCredential same{.user = "storage", .secret = kAlice.secret};
  ChapTarget target(target_options(same), registry, counting());
  const auto challenge = target.receive(Pairs{{"CHAP_A", "7"}}).value();
  CHECK(
      target
          .receive(Pairs{{"CHAP_N", "alice"},
                         {"CHAP_R", response_to(challenge, kAlice.secret, ChapAlgorithm::kSha256)}})
          .error() == ChapFailure::kSameSecret);
  ChallengeRegistry own;
  ChapInitiator initiator(
      {.credential = kAlice, .mutual = same, .algorithms = {ChapAlgorithm::kMd5}}, own, counting());
  const auto sent = initiator.receive(Pairs{{"CHAP_A", "5"}, {"CHAP_I", "1"}, {"CHAP_C", "0x77"}});
  const std::string proof = response_to(*sent, kAlice.secret, ChapAlgorithm::kMd5);
  CHECK(initiator.receive(Pairs{{"CHAP_N", "storage"}, {"CHAP_R", proof}}).error() ==
        ChapFailure::kSameSecret);
}

TEST_CASE("Proof that is not configured is not given", "[iscsi][chap]") {
  ChallengeRegistry registry;
  ChapTarget target(target_options(), registry, counting());
  const auto challenge = target.receive(Pairs{{"CHAP_A", "5"}}).value();
  const std::string right = response_to(challenge, kAlice.secret, ChapAlgorithm::kMd5);
  SECTION("asked for whole") {
    CHECK(target
              .receive(Pairs{
                  {"CHAP_N", "alice"}, {"CHAP_R", right}, {"CHAP_I", "1"}, {"CHAP_C", "0xff"}})
              .error() == ChapFailure::kMutualNotPossible);
  }
  SECTION("asked for by half") {
    CHECK(target.receive(Pairs{{"CHAP_N", "alice"}, {"CHAP_R", right}, {"CHAP_I", "1"}}).error() ==
          ChapFailure::kMissingKey);
  }
}

TEST_CASE("An initiator that wants proof does not go on without", "[iscsi][chap]") {
  ChallengeRegistry registry;
  ChapInitiator initiator(
      {.credential = kAlice, .mutual = kStorage, .algorithms = {ChapAlgorithm::kMd5}}, registry,
      counting());
  const auto sent = initiator.receive(Pairs{{"CHAP_A", "5"}, {"CHAP_I", "1"}, {"CHAP_C", "0x77"}});
  SECTION("nothing") { CHECK(initiator.receive({}).error() == ChapFailure::kNotProven); }
  SECTION("a wrong response") {
    CHECK(initiator.receive(Pairs{{"CHAP_N", "storage"}, {"CHAP_R", "0x00"}}).error() ==
          ChapFailure::kNotProven);
  }
  SECTION("another's name") {
    const std::string proof = response_to(*sent, kStorage.secret, ChapAlgorithm::kMd5);
    CHECK(initiator.receive(Pairs{{"CHAP_N", "rogue"}, {"CHAP_R", proof}}).error() ==
          ChapFailure::kNotProven);
  }
  CHECK_FALSE(initiator.done());
}

TEST_CASE("An initiator takes no digest that it did not offer", "[iscsi][chap]") {
  ChallengeRegistry registry;
  ChapInitiator initiator(
      {.credential = kAlice, .mutual = {}, .algorithms = {ChapAlgorithm::kSha256}}, registry,
      counting());
  CHECK(initiator.receive(Pairs{{"CHAP_A", "5"}, {"CHAP_I", "1"}, {"CHAP_C", "0x77"}}).error() ==
        ChapFailure::kNoAlgorithm);
}

}  // namespace sandbay::iscsi
