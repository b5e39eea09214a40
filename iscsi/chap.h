// CHAP for iSCSI (RFC 1994; RFC 7143 sections 12.1.3 and 9.2.1), both ways and both sides, with
// MD5, SHA-1, SHA-256 and SHA3-256. Keys go in and keys come out; nothing here touches PDUs.
//
// What section 9.2.1 asks for holds throughout: a challenge that this process has itself issued,
// on this or any other connection, is not answered; a response that we ourselves would have given
// to our challenge is a failure (the same secret in both directions); responses are compared in
// constant time; and every failure looks the same to the peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "iscsi/target_server.h"
#include "iscsi/text.h"

namespace sandbay::iscsi {

// The numbers of IANA's "PPP Authentication Algorithms".
enum class ChapAlgorithm : std::uint8_t { kMd5 = 5, kSha1 = 6, kSha256 = 7, kSha3_256 = 8 };

inline constexpr std::size_t kMaximumChapBytes = 1024;  // Of a challenge or response.
inline constexpr std::size_t kMaximumChapName = 255;

// Strongest first.
std::span<const ChapAlgorithm> all_chap_algorithms();
std::string_view name_of(ChapAlgorithm algorithm);  // "SHA3-256", "SHA-256", "SHA1", "MD5"
// Knows the names above, and "SHA256", "SHA-1" and the number, in any case.
std::optional<ChapAlgorithm> chap_algorithm_from(std::string_view name);
// `names` in their order; empty: all. Or one sentence that names the bad one.
std::expected<std::vector<ChapAlgorithm>, std::string> chap_algorithms_from(
    std::span<const std::string> names);

// Fills the bytes with what nobody can predict: OpenSSL's generator; tests inject another.
using RandomSource = std::function<void(std::span<std::byte>)>;
RandomSource openssl_random();

// The response: hash of identifier, secret and challenge. Empty if OpenSSL lacks the algorithm.
std::vector<std::byte> chap_response(ChapAlgorithm algorithm, std::uint8_t identifier,
                                     std::string_view secret, std::span<const std::byte> challenge);

// The challenges this process has issued on connections that are still logging in. May be used
// from several executors: it is touched a few times in a login, under a mutex.
class ChallengeRegistry {
 public:
  // Keeps a challenge registered while it lives.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&& other) noexcept;
    ~Lease();

   private:
    friend class ChallengeRegistry;
    ChallengeRegistry* registry_ = nullptr;
    std::vector<std::byte> challenge_;
  };

  // False as second if it is registered already: then the lease is empty.
  std::pair<Lease, bool> add(std::vector<std::byte> challenge);
  bool contains(std::span<const std::byte> challenge) const;

 private:
  void remove(const std::vector<std::byte>& challenge);

  mutable std::mutex mutex_;
  std::set<std::vector<std::byte>> challenges_;
};

enum class ChapFailure : std::uint8_t {
  kMissingKey,   // Not the keys that this step needs.
  kBadValue,     // A key that cannot be decoded, or is too long.
  kNoAlgorithm,  // None in common.
  kUnknownUser,
  kWrongResponse,
  kReflection,         // Our own challenge comes back.
  kSameSecret,         // The peer answered with the secret that we prove ourselves with.
  kMutualNotPossible,  // The peer asks for proof and there is nothing configured to prove.
  kNotProven,          // Initiator: the target did not prove itself.
};
std::string_view describe(ChapFailure failure);

// The target's part of one login.
class ChapTarget {
 public:
  struct Options {
    std::vector<ChapCredential> credentials;  // Any of which lets the initiator in.
    std::optional<ChapCredential> mutual;     // What we prove ourselves with.
    std::vector<ChapAlgorithm> algorithms;    // Allowed, in order of preference; not empty.
  };
  // The registry outlives this.
  ChapTarget(Options options, ChallengeRegistry& registry, RandomSource random);

  // The CHAP keys of one request; what to answer. Any failure ends the login with status 0201.
  std::expected<std::vector<KeyValue>, ChapFailure> receive(std::span<const KeyValue> keys);
  bool done() const noexcept { return step_ == Step::kDone; }
  // A challenge has been sent: the next request has the response to it.
  bool challenged() const noexcept { return step_ == Step::kResponse; }
  const std::string& user() const noexcept { return user_; }  // Once done.

 private:
  enum class Step : std::uint8_t { kAlgorithm, kResponse, kDone };
  using Answer = std::expected<std::vector<KeyValue>, ChapFailure>;
  Answer choose_algorithm(std::span<const KeyValue> keys);
  Answer check_response(std::span<const KeyValue> keys);
  Answer prove_ourselves(std::string_view identifier_text, std::string_view challenge_text);

  Options options_;
  ChallengeRegistry& registry_;
  RandomSource random_;
  Step step_ = Step::kAlgorithm;
  ChapAlgorithm algorithm_ = ChapAlgorithm::kMd5;
  std::uint8_t identifier_ = 0;
  std::vector<std::byte> challenge_;
  ChallengeRegistry::Lease lease_;
  std::string user_;
};

// The initiator's part.
class ChapInitiator {
 public:
  struct Options {
    ChapCredential credential;
    // What the target has to prove itself with, if it has to.
    std::optional<ChapCredential> mutual;
    std::vector<ChapAlgorithm> algorithms;  // Offered, in this order; not empty.
  };
  ChapInitiator(Options options, ChallengeRegistry& registry, RandomSource random);

  // The first step: CHAP_A.
  std::vector<KeyValue> start() const;
  // The target's CHAP keys; what to send next (nothing once done).
  std::expected<std::vector<KeyValue>, ChapFailure> receive(std::span<const KeyValue> keys);
  bool done() const noexcept { return step_ == Step::kDone; }
  // The next request may ask to leave the security stage.
  bool ready_to_transit() const noexcept { return step_ != Step::kChallenge; }

 private:
  enum class Step : std::uint8_t { kChallenge, kProof, kDone };
  using Answer = std::expected<std::vector<KeyValue>, ChapFailure>;
  Answer answer_challenge(std::span<const KeyValue> keys);
  Answer check_proof(std::span<const KeyValue> keys);

  Options options_;
  ChallengeRegistry& registry_;
  RandomSource random_;
  Step step_ = Step::kChallenge;
  ChapAlgorithm algorithm_ = ChapAlgorithm::kMd5;
  std::uint8_t identifier_ = 0;
  std::vector<std::byte> challenge_;
  ChallengeRegistry::Lease lease_;
};

// The registries that all connections of a process share, by the role in which challenges are
// issued: a process that is initiator and target at once (members of a group, tests) would
// otherwise take its own initiators for reflections.
ChallengeRegistry& target_challenges();
ChallengeRegistry& initiator_challenges();

}  // namespace sandbay::iscsi
