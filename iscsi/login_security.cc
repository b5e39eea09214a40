// The security stage of a login on the target's side (RFC 7143 sections 6.3.2 and 12.1): the
// choice of a method and the CHAP exchange.
//
// The method is the first in the initiator's list that it is allowed to use here. None is allowed
// if some access record lets it in without CHAP. CHAP is allowed if there are credentials, and
// where both are, it is for an initiator that does not offer None: one that offers both may have
// no credentials to offer.
#include <fmt/core.h>

#include <algorithm>

#include "iscsi/login.h"

namespace sandbay::iscsi {
namespace {

constexpr std::string_view kChap = "CHAP";

}  // namespace

bool TargetLogin::authenticated() const noexcept {
  if (chap_ != nullptr) return chap_->done();
  return !admission_.chap_required;
}

TargetLogin::Refusal TargetLogin::run_security(const std::vector<KeyValue>& keys,
                                               std::vector<KeyValue>& answers) {
  std::vector<KeyValue> chap_keys;
  const std::string* offered = nullptr;
  for (const KeyValue& pair : keys) {
    if (pair.key == "AuthMethod") {
      offered = &pair.value;
    } else {
      chap_keys.push_back(pair);
    }
  }
  if (offered != nullptr) {
    const Refusal refusal = choose_method(*offered, answers);
    if (refusal.has_value()) return refusal;
  }
  if (!chap_keys.empty()) return run_chap(chap_keys, answers);
  if (authenticated() || !request_.transit) return std::nullopt;
  if (method_chosen_ && chap_ != nullptr) return std::nullopt;
  if (method_proposed_) {
    return wrong(LoginStatus::kAuthenticationFailure, "the initiator does not take up CHAP");
  }
  // It wants to go on without having offered a method: then we do (section 6.3.2).
  method_proposed_ = true;
  answers.push_back({.key = "AuthMethod", .value = std::string(kChap)});
  return std::nullopt;
}

TargetLogin::Refusal TargetLogin::choose_method(std::string_view offered,
                                                std::vector<KeyValue>& answers) {
  const auto methods = split_list(offered);
  const bool offers_none = std::ranges::find(methods, kNone) != methods.end();
  const bool none_allowed = !admission_.chap_required;
  const bool chap_allowed = !admission_.credentials.empty() && !(none_allowed && offers_none);
  for (const std::string_view method : methods) {
    const bool chap = method == kChap && chap_allowed;
    if (!chap && !(method == kNone && none_allowed)) continue;
    method_chosen_ = true;
    // An answer to our own proposal needs none in turn.
    if (!method_proposed_) answers.push_back({.key = "AuthMethod", .value = std::string(method)});
    if (!chap) return std::nullopt;
    ChapTarget::Options options{.credentials = admission_.credentials,
                                .mutual = admission_.mutual_chap,
                                .algorithms = admission_.chap_algorithms};
    if (options.algorithms.empty()) {
      const auto all = all_chap_algorithms();
      options.algorithms.assign(all.begin(), all.end());
    }
    chap_ = std::make_unique<ChapTarget>(std::move(options), challenges_, random_);
    return std::nullopt;
  }
  return wrong(LoginStatus::kAuthenticationFailure,
               fmt::format("none of the methods {} is allowed", offered.substr(0, 80)));
}

TargetLogin::Refusal TargetLogin::run_chap(std::span<const KeyValue> keys,
                                           std::vector<KeyValue>& answers) {
  if (chap_ == nullptr) {
    return wrong(LoginStatus::kInitiatorError, "CHAP keys without AuthMethod=CHAP");
  }
  auto reply = chap_->receive(keys);
  if (!reply.has_value()) {
    return wrong(LoginStatus::kAuthenticationFailure,
                 fmt::format("{}: {}", identity_.initiator_name, describe(reply.error())));
  }
  answers.insert(answers.end(), reply->begin(), reply->end());
  if (chap_->done()) chap_user_ = chap_->user();
  return std::nullopt;
}

}  // namespace sandbay::iscsi
