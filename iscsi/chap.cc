// CHAP: the hash, the registry of challenges, and both sides' exchanges (RFC 1994 section 4;
// RFC 7143 sections 9.2.1 and 12.1.3).
#include "iscsi/chap.h"

#include <fmt/core.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <memory>
#include <utility>

#include "iscsi/access.h"
#include "iscsi/keys.h"

namespace sandbay::iscsi {
namespace {

constexpr std::array kAlgorithms = {ChapAlgorithm::kSha3_256, ChapAlgorithm::kSha256,
                                    ChapAlgorithm::kSha1, ChapAlgorithm::kMd5};

// Of our challenges: as long as the hash, so that a challenge is never weaker than its response;
// 16 bytes at least (96 bits of randomness are the least that section 9.2.1 speaks of).
std::size_t hash_bytes(ChapAlgorithm algorithm) {
  switch (algorithm) {
    case ChapAlgorithm::kMd5:
      return 16;
    case ChapAlgorithm::kSha1:
      return 20;
    case ChapAlgorithm::kSha256:
    case ChapAlgorithm::kSha3_256:
      return 32;
  }
  return 32;
}

const EVP_MD* implementation(ChapAlgorithm algorithm) {
  switch (algorithm) {
    case ChapAlgorithm::kMd5:
      return EVP_md5();
    case ChapAlgorithm::kSha1:
      return EVP_sha1();
    case ChapAlgorithm::kSha256:
      return EVP_sha256();
    case ChapAlgorithm::kSha3_256:
      return EVP_sha3_256();
  }
  return nullptr;
}

std::optional<ChapAlgorithm> algorithm_from_number(std::string_view text) {
  const auto number = parse_number(text);
  if (!number.has_value()) return std::nullopt;
  const auto found = std::ranges::find(kAlgorithms, *number, [](ChapAlgorithm algorithm) {
    return static_cast<std::uint64_t>(algorithm);
  });
  if (found == kAlgorithms.end()) return std::nullopt;
  return *found;
}

bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

const std::string* find(std::span<const KeyValue> keys, KeyId id) {
  const auto found = std::ranges::find(keys, row_of(id).name, &KeyValue::key);
  return found == keys.end() ? nullptr : &found->value;
}

KeyValue pair_of(KeyId id, std::string value) {
  return {.key = std::string(row_of(id).name), .value = std::move(value)};
}

std::optional<std::uint8_t> parse_identifier(std::string_view text) {
  const auto number = parse_number(text);
  if (!number.has_value() || *number > 255) return std::nullopt;
  return static_cast<std::uint8_t>(*number);
}

struct Challenge {
  std::uint8_t identifier = 0;
  std::vector<std::byte> bytes;
  ChallengeRegistry::Lease lease;
};

// Random, and registered as ours.
Challenge make_challenge(ChapAlgorithm algorithm, ChallengeRegistry& registry,
                         const RandomSource& random) {
  Challenge challenge;
  std::array<std::byte, 1> identifier{};
  random(identifier);
  challenge.identifier = std::to_integer<std::uint8_t>(identifier[0]);
  challenge.bytes.resize(hash_bytes(algorithm));
  // A source that repeats itself is tolerated for a while; the registry refuses duplicates.
  constexpr int kTries = 16;
  for (int tries = 0; tries < kTries; ++tries) {
    random(challenge.bytes);
    auto [lease, added] = registry.add(challenge.bytes);
    challenge.lease = std::move(lease);
    if (added) break;
  }
  return challenge;
}

}  // namespace

std::span<const ChapAlgorithm> all_chap_algorithms() { return kAlgorithms; }

std::string_view name_of(ChapAlgorithm algorithm) {
  switch (algorithm) {
    case ChapAlgorithm::kMd5:
      return "MD5";
    case ChapAlgorithm::kSha1:
      return "SHA1";
    case ChapAlgorithm::kSha256:
      return "SHA-256";
    case ChapAlgorithm::kSha3_256:
      return "SHA3-256";
  }
  return "unknown";
}

std::optional<ChapAlgorithm> chap_algorithm_from(std::string_view name) {
  const std::string lower = lower_case(name);
  for (const ChapAlgorithm algorithm : kAlgorithms) {
    if (lower == lower_case(name_of(algorithm))) return algorithm;
  }
  if (lower == "sha256") return ChapAlgorithm::kSha256;
  if (lower == "sha-1") return ChapAlgorithm::kSha1;
  return algorithm_from_number(name);
}

std::expected<std::vector<ChapAlgorithm>, std::string> chap_algorithms_from(
    std::span<const std::string> names) {
  std::vector<ChapAlgorithm> algorithms;
  for (const std::string& name : names) {
    const auto algorithm = chap_algorithm_from(name);
    if (!algorithm.has_value()) {
      return std::unexpected(
          fmt::format("\"{}\" is not a CHAP digest; MD5, SHA1, SHA-256 and SHA3-256 are", name));
    }
    if (std::ranges::find(algorithms, *algorithm) == algorithms.end()) {
      algorithms.push_back(*algorithm);
    }
  }
  if (algorithms.empty()) algorithms.assign(kAlgorithms.begin(), kAlgorithms.end());
  return algorithms;
}

RandomSource openssl_random() {
  return [](std::span<std::byte> bytes) {
    // It fails only without a source of entropy, and then nobody may log in by a guess.
    const int filled =
        RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
    assert(filled == 1);
  };
}

std::vector<std::byte> chap_response(ChapAlgorithm algorithm, std::uint8_t identifier,
                                     std::string_view secret,
                                     std::span<const std::byte> challenge) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        &EVP_MD_CTX_free);
  std::vector<std::byte> response(hash_bytes(algorithm));
  unsigned length = 0;
  const bool done =
      context != nullptr &&
      EVP_DigestInit_ex(context.get(), implementation(algorithm), nullptr) == 1 &&
      EVP_DigestUpdate(context.get(), &identifier, 1) == 1 &&
      EVP_DigestUpdate(context.get(), secret.data(), secret.size()) == 1 &&
      EVP_DigestUpdate(context.get(), challenge.data(), challenge.size()) == 1 &&
      EVP_DigestFinal_ex(context.get(), reinterpret_cast<unsigned char*>(response.data()),
                         &length) == 1;
  if (!done || length != response.size()) response.clear();
  return response;
}

std::string_view describe(ChapFailure failure) {
  switch (failure) {
    case ChapFailure::kMissingKey:
      return "keys that CHAP needs in this step are missing";
    case ChapFailure::kBadValue:
      return "a CHAP key cannot be decoded";
    case ChapFailure::kNoAlgorithm:
      return "no CHAP digest in common";
    case ChapFailure::kUnknownUser:
      return "unknown CHAP user";
    case ChapFailure::kWrongResponse:
      return "wrong CHAP response";
    case ChapFailure::kReflection:
      return "a CHAP challenge of our own was reflected";
    case ChapFailure::kSameSecret:
      return "the same CHAP secret is used in both directions";
    case ChapFailure::kMutualNotPossible:
      return "asked for mutual CHAP, which is not configured";
    case ChapFailure::kNotProven:
      return "the target did not prove itself";
  }
  return "CHAP failed";
}

ChallengeRegistry::Lease::Lease(Lease&& other) noexcept
    : registry_(std::exchange(other.registry_, nullptr)), challenge_(std::move(other.challenge_)) {}

ChallengeRegistry::Lease& ChallengeRegistry::Lease::operator=(Lease&& other) noexcept {
  std::swap(registry_, other.registry_);
  std::swap(challenge_, other.challenge_);
  return *this;
}

ChallengeRegistry::Lease::~Lease() {
  if (registry_ != nullptr) registry_->remove(challenge_);
}

std::pair<ChallengeRegistry::Lease, bool> ChallengeRegistry::add(std::vector<std::byte> challenge) {
  Lease lease;
  const std::lock_guard guard(mutex_);
  if (!challenges_.insert(challenge).second) return {std::move(lease), false};
  lease.registry_ = this;
  lease.challenge_ = std::move(challenge);
  return {std::move(lease), true};
}

bool ChallengeRegistry::contains(std::span<const std::byte> challenge) const {
  const std::vector<std::byte> key(challenge.begin(), challenge.end());
  const std::lock_guard guard(mutex_);
  return challenges_.contains(key);
}

void ChallengeRegistry::remove(const std::vector<std::byte>& challenge) {
  const std::lock_guard guard(mutex_);
  challenges_.erase(challenge);
}

ChallengeRegistry& target_challenges() {
  static ChallengeRegistry registry;
  return registry;
}

ChallengeRegistry& initiator_challenges() {
  static ChallengeRegistry registry;
  return registry;
}

ChapTarget::ChapTarget(Options options, ChallengeRegistry& registry, RandomSource random)
    : options_(std::move(options)), registry_(registry), random_(std::move(random)) {
  assert(!options_.algorithms.empty());
}

ChapTarget::Answer ChapTarget::receive(std::span<const KeyValue> keys) {
  switch (step_) {
    case Step::kAlgorithm:
      return choose_algorithm(keys);
    case Step::kResponse:
      return check_response(keys);
    case Step::kDone:
      break;
  }
  return std::unexpected(ChapFailure::kBadValue);
}

ChapTarget::Answer ChapTarget::choose_algorithm(std::span<const KeyValue> keys) {
  const std::string* const offered = find(keys, KeyId::kChapA);
  if (offered == nullptr) return std::unexpected(ChapFailure::kMissingKey);
  std::vector<ChapAlgorithm> possible;
  for (const std::string_view part : split_list(*offered)) {
    const auto algorithm = algorithm_from_number(part);
    if (algorithm.has_value()) possible.push_back(*algorithm);
  }
  const auto chosen = std::ranges::find_first_of(options_.algorithms, possible);
  if (chosen == options_.algorithms.end()) return std::unexpected(ChapFailure::kNoAlgorithm);
  algorithm_ = *chosen;
  Challenge challenge = make_challenge(algorithm_, registry_, random_);
  identifier_ = challenge.identifier;
  challenge_ = std::move(challenge.bytes);
  lease_ = std::move(challenge.lease);
  step_ = Step::kResponse;
  return std::vector{pair_of(KeyId::kChapA, std::to_string(static_cast<unsigned>(algorithm_))),
                     pair_of(KeyId::kChapI, std::to_string(identifier_)),
                     pair_of(KeyId::kChapC, format_hexadecimal(challenge_))};
}

ChapTarget::Answer ChapTarget::check_response(std::span<const KeyValue> keys) {
  const std::string* const name = find(keys, KeyId::kChapN);
  const std::string* const response_text = find(keys, KeyId::kChapR);
  if (name == nullptr || response_text == nullptr) {
    return std::unexpected(ChapFailure::kMissingKey);
  }
  const auto response = parse_binary(*response_text, kMaximumChapBytes);
  if (!response.has_value() || name->empty() || name->size() > kMaximumChapName) {
    return std::unexpected(ChapFailure::kBadValue);
  }
  // Every credential is tried, matching or not, so that time does not tell names.
  bool known = false;
  bool right = false;
  for (const ChapCredential& credential : options_.credentials) {
    const auto expected = chap_response(algorithm_, identifier_, credential.secret, challenge_);
    const bool equal = !expected.empty() && same_bytes(*response, expected);
    known |= credential.user == *name;
    right |= credential.user == *name && equal;
  }
  // Section 9.2.1: what we would have answered ourselves is no proof.
  if (options_.mutual.has_value()) {
    const auto own = chap_response(algorithm_, identifier_, options_.mutual->secret, challenge_);
    if (same_bytes(*response, own)) return std::unexpected(ChapFailure::kSameSecret);
  }
  if (!known) return std::unexpected(ChapFailure::kUnknownUser);
  if (!right) return std::unexpected(ChapFailure::kWrongResponse);
  user_ = *name;

  const std::string* const identifier = find(keys, KeyId::kChapI);
  const std::string* const challenge = find(keys, KeyId::kChapC);
  if (identifier != nullptr && challenge != nullptr) {
    return prove_ourselves(*identifier, *challenge);
  }
  if (identifier != nullptr || challenge != nullptr) {
    return std::unexpected(ChapFailure::kMissingKey);
  }
  step_ = Step::kDone;
  return std::vector<KeyValue>{};
}

ChapTarget::Answer ChapTarget::prove_ourselves(std::string_view identifier_text,
                                               std::string_view challenge_text) {
  const auto identifier = parse_identifier(identifier_text);
  const auto challenge = parse_binary(challenge_text, kMaximumChapBytes);
  if (!identifier.has_value() || !challenge.has_value() || challenge->empty()) {
    return std::unexpected(ChapFailure::kBadValue);
  }
  // Ours, on this connection or another: answering would lend the peer our proof.
  if (same_bytes(*challenge, challenge_) || registry_.contains(*challenge)) {
    return std::unexpected(ChapFailure::kReflection);
  }
  if (!options_.mutual.has_value()) return std::unexpected(ChapFailure::kMutualNotPossible);
  const auto response = chap_response(algorithm_, *identifier, options_.mutual->secret, *challenge);
  if (response.empty()) return std::unexpected(ChapFailure::kNoAlgorithm);
  step_ = Step::kDone;
  return std::vector{pair_of(KeyId::kChapN, options_.mutual->user),
                     pair_of(KeyId::kChapR, format_hexadecimal(response))};
}

ChapInitiator::ChapInitiator(Options options, ChallengeRegistry& registry, RandomSource random)
    : options_(std::move(options)), registry_(registry), random_(std::move(random)) {
  assert(!options_.algorithms.empty());
}

std::vector<KeyValue> ChapInitiator::start() const {
  std::string list;
  for (const ChapAlgorithm algorithm : options_.algorithms) {
    if (!list.empty()) list += ',';
    list += std::to_string(static_cast<unsigned>(algorithm));
  }
  return {pair_of(KeyId::kChapA, std::move(list))};
}

ChapInitiator::Answer ChapInitiator::receive(std::span<const KeyValue> keys) {
  switch (step_) {
    case Step::kChallenge:
      return answer_challenge(keys);
    case Step::kProof:
      return check_proof(keys);
    case Step::kDone:
      break;
  }
  return std::unexpected(ChapFailure::kBadValue);
}

ChapInitiator::Answer ChapInitiator::answer_challenge(std::span<const KeyValue> keys) {
  const std::string* const chosen = find(keys, KeyId::kChapA);
  const std::string* const identifier_text = find(keys, KeyId::kChapI);
  const std::string* const challenge_text = find(keys, KeyId::kChapC);
  if (chosen == nullptr || identifier_text == nullptr || challenge_text == nullptr) {
    return std::unexpected(ChapFailure::kMissingKey);
  }
  const auto algorithm = algorithm_from_number(*chosen);
  if (!algorithm.has_value() ||
      std::ranges::find(options_.algorithms, *algorithm) == options_.algorithms.end()) {
    return std::unexpected(ChapFailure::kNoAlgorithm);
  }
  const auto identifier = parse_identifier(*identifier_text);
  const auto challenge = parse_binary(*challenge_text, kMaximumChapBytes);
  if (!identifier.has_value() || !challenge.has_value() || challenge->empty()) {
    return std::unexpected(ChapFailure::kBadValue);
  }
  // Section 9.2.1, attack d): one that we have issued on another connection.
  if (registry_.contains(*challenge)) return std::unexpected(ChapFailure::kReflection);
  algorithm_ = *algorithm;
  const auto response =
      chap_response(algorithm_, *identifier, options_.credential.secret, *challenge);
  if (response.empty()) return std::unexpected(ChapFailure::kNoAlgorithm);
  std::vector answer{pair_of(KeyId::kChapN, options_.credential.user),
                     pair_of(KeyId::kChapR, format_hexadecimal(response))};
  if (!options_.mutual.has_value()) {
    step_ = Step::kDone;
    return answer;
  }
  Challenge own = make_challenge(algorithm_, registry_, random_);
  // Section 9.2.1: the challenge that came must not go back.
  if (same_bytes(own.bytes, *challenge)) return std::unexpected(ChapFailure::kReflection);
  identifier_ = own.identifier;
  challenge_ = std::move(own.bytes);
  lease_ = std::move(own.lease);
  answer.push_back(pair_of(KeyId::kChapI, std::to_string(identifier_)));
  answer.push_back(pair_of(KeyId::kChapC, format_hexadecimal(challenge_)));
  step_ = Step::kProof;
  return answer;
}

ChapInitiator::Answer ChapInitiator::check_proof(std::span<const KeyValue> keys) {
  const std::string* const name = find(keys, KeyId::kChapN);
  const std::string* const response_text = find(keys, KeyId::kChapR);
  if (name == nullptr || response_text == nullptr) return std::unexpected(ChapFailure::kNotProven);
  const auto response = parse_binary(*response_text, kMaximumChapBytes);
  if (!response.has_value()) return std::unexpected(ChapFailure::kBadValue);
  const auto own = chap_response(algorithm_, identifier_, options_.credential.secret, challenge_);
  if (same_bytes(*response, own)) return std::unexpected(ChapFailure::kSameSecret);
  if (!options_.mutual.has_value()) return std::unexpected(ChapFailure::kNotProven);
  const ChapCredential& mutual = *options_.mutual;
  const auto expected = chap_response(algorithm_, identifier_, mutual.secret, challenge_);
  if (expected.empty() || !same_bytes(*response, expected) || *name != mutual.user) {
    return std::unexpected(ChapFailure::kNotProven);
  }
  step_ = Step::kDone;
  return std::vector<KeyValue>{};
}

}  // namespace sandbay::iscsi
