// The initiator's Login Phase. One exchange is a logical request (one or more PDUs with the C bit)
// and a logical response; the stages, and what is offered in them, are decided between exchanges.
// RFC 7143 sections 6.3, 7.12, 11.12, 11.13.
#include "iscsi/initiator_login.h"

#include <fmt/core.h>

#include <algorithm>
#include <cassert>

#include "iscsi/chap.h"
#include "iscsi/initiator_url.h"
#include "iscsi/text.h"
#include "runtime/printable.h"
#include "runtime/sync.h"

namespace sandbay::iscsi {
namespace {

constexpr unsigned kMaximumExchanges = 64;
// Both sides' limit until something else is negotiated (section 6.3).
constexpr std::size_t kReceiveBytes = 16 * 1024;

using Checked = std::expected<void, LoginFailure>;

std::unexpected<LoginFailure> failure(Error error, std::string message) {
  return std::unexpected(LoginFailure{.error = error, .message = std::move(message)});
}

Error error_of(LoginStatus status) {
  switch (status) {
    case LoginStatus::kAuthenticationFailure:
    case LoginStatus::kAuthorizationFailure:
      return Error::kPermission;
    case LoginStatus::kTargetNotFound:
    case LoginStatus::kTargetRemoved:
    case LoginStatus::kSessionDoesNotExist:
      return Error::kNotFound;
    case LoginStatus::kServiceUnavailable:
      return Error::kNotReady;
    case LoginStatus::kOutOfResources:
    case LoginStatus::kTooManyConnections:
      return Error::kNoMemory;
    default:
      return Error::kInvalid;
  }
}

// Whether None is one of the methods in a list.
bool offers_none(std::string_view list) {
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    if (list.substr(0, comma) == kNone) return true;
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
  return false;
}

// One login on one stream. Lives in the frame of log_in_at().
class LoginPhase {
 public:
  LoginPhase(const InitiatorLoginRequest& request, KeyPreferences preferences, Stream& stream)
      : request_(request),
        stream_(stream),
        negotiator_(Role::kInitiator, std::move(preferences), request.current),
        exp_stat_sn_(request.exp_stat_sn) {
    negotiator_.set_leading(request.tsih == 0);
    negotiator_.set_discovery(request.target_name.empty());
  }

  Task<Checked> run();

  const NegotiatedParameters& parameters() const { return negotiator_.result(); }
  std::uint16_t tsih() const { return tsih_; }
  const StatusNumbers& numbers() const { return numbers_; }
  std::vector<std::byte> take_rest() {
    received_.erase(received_.begin(), received_.begin() + static_cast<std::ptrdiff_t>(consumed_));
    return std::move(received_);
  }
  const std::optional<std::string>& redirected_to() const { return redirected_to_; }

 private:
  Checked begin(std::vector<KeyValue>& pairs);
  Checked answer(std::vector<KeyValue> received, std::vector<KeyValue>& pairs);
  Checked answer_security(const std::vector<KeyValue>& received, std::vector<KeyValue>& pairs);
  void enter_operational(std::vector<KeyValue>& pairs);
  Checked check_response(const LoginResponse& response);
  Task<Checked> send_text(std::string text);
  Task<Checked> receive_text(std::string& text);
  Task<Checked> send_request(std::string segment, bool continues);
  Task<std::expected<LoginResponse, LoginFailure>> receive_response();
  Task<Checked> fill(std::size_t byte_count);

  const InitiatorLoginRequest& request_;
  Stream& stream_;
  Negotiator negotiator_;
  std::optional<ChapInitiator> chap_;
  bool none_acceptable_ = true;  // Nobody has to prove anything: that is on offer.
  bool chap_begun_ = false;
  LoginStage stage_ = LoginStage::kSecurity;
  bool want_transit_ = false;
  bool moved_ = false;  // The last response changed the stage.
  std::uint32_t exp_stat_sn_;
  bool first_response_ = true;
  std::uint16_t tsih_ = 0;
  StatusNumbers numbers_;
  std::optional<std::string> redirected_to_;
  std::vector<std::byte> received_;
  std::size_t consumed_ = 0;
  std::vector<std::byte> segment_;  // The data of the response in hand.
};

Task<Checked> LoginPhase::fill(std::size_t byte_count) {
  while (received_.size() - consumed_ < byte_count) {
    const std::size_t old = received_.size();
    received_.resize(old + kReceiveBytes);
    const IoSlice slice{.data = received_.data() + old, .byte_count = kReceiveBytes};
    const Result<std::size_t> got = co_await stream_.receive(std::span(&slice, 1));
    received_.resize(old + got.value_or(0));
    if (!got.has_value() || *got == 0) {
      co_return failure(Error::kReset, "the target closed the connection during login");
    }
  }
  co_return Checked{};
}

Task<Checked> LoginPhase::send_request(std::string segment, bool continues) {
  const LoginRequest pdu{
      .transit = want_transit_ && !continues,
      .continues = continues,
      .current_stage = static_cast<std::uint8_t>(stage_),
      .next_stage =
          static_cast<std::uint8_t>(!want_transit_ || continues       ? LoginStage::kSecurity
                                    : stage_ == LoginStage::kSecurity ? LoginStage::kOperational
                                                                      : LoginStage::kFullFeature),
      .data_segment_length = static_cast<std::uint32_t>(segment.size()),
      .isid = request_.isid,
      .tsih = request_.tsih,
      .cid = request_.cid,
      .cmd_sn = request_.cmd_sn,
      .exp_stat_sn = exp_stat_sn_,
  };
  Bhs bhs;
  write_login_request(pdu, bhs);
  segment.resize(padded(pdu.data_segment_length), '\0');
  const IoSlice slices[] = {
      {.data = bhs.data(), .byte_count = bhs.size()},
      {.data = reinterpret_cast<std::byte*>(segment.data()), .byte_count = segment.size()}};
  const Error error = co_await stream_.send(std::span(slices).first(segment.empty() ? 1 : 2));
  if (error != Error::kNone) {
    co_return failure(Error::kReset, "the connection was lost during login");
  }
  co_return Checked{};
}

Task<std::expected<LoginResponse, LoginFailure>> LoginPhase::receive_response() {
  Checked filled = co_await fill(kBhsBytes);
  if (!filled.has_value()) co_return std::unexpected(filled.error());
  Bhs bhs;
  std::copy_n(received_.begin() + static_cast<std::ptrdiff_t>(consumed_), kBhsBytes, bhs.begin());
  const std::size_t ahs = ahs_byte_count(bhs);
  const std::uint32_t data = data_segment_length(bhs);
  if (opcode_of(bhs) != Opcode::kLoginResponse || data > kMaximumTextBytes) {
    co_return failure(Error::kInvalid, "the target did not answer with a Login Response");
  }
  filled = co_await fill(kBhsBytes + ahs + padded(data));
  if (!filled.has_value()) co_return std::unexpected(filled.error());
  const auto start = received_.begin() + static_cast<std::ptrdiff_t>(consumed_ + kBhsBytes + ahs);
  segment_.assign(start, start + data);
  consumed_ += kBhsBytes + ahs + padded(data);
  const Result<LoginResponse, RejectReason> parsed = parse_login_response(bhs);
  if (!parsed.has_value()) co_return failure(Error::kInvalid, "malformed Login Response");
  const Checked checked = check_response(*parsed);
  if (!checked.has_value()) co_return std::unexpected(checked.error());
  co_return *parsed;
}

Checked LoginPhase::check_response(const LoginResponse& response) {
  if (response.status != LoginStatus::kSuccess) {
    if (status_class(response.status) == 1) {
      const std::string_view text(reinterpret_cast<const char*>(segment_.data()), segment_.size());
      const auto pairs = parse_text(text);
      if (!pairs.has_value()) return failure(Error::kInvalid, "redirected without an address");
      for (const KeyValue& pair : *pairs) {
        if (pair.key == "TargetAddress") redirected_to_ = pair.value;
      }
    }
    return std::unexpected(LoginFailure{
        .error = error_of(response.status),
        .status_class = status_class(response.status),
        .status_detail = status_detail(response.status),
        .message = fmt::format("the target refused the login: {}", name_of(response.status))});
  }
  if (!first_response_ && response.numbers.stat_sn != exp_stat_sn_) {
    return failure(Error::kInvalid, "Login Response with a StatSN out of order");
  }
  first_response_ = false;
  exp_stat_sn_ = response.numbers.stat_sn + 1;
  numbers_ = response.numbers;
  if (response.version_active != 0) return failure(Error::kUnsupported, "no version in common");
  if (response.isid != request_.isid || response.current_stage != std::uint8_t(stage_)) {
    return failure(Error::kInvalid, "Login Response for another stage or session");
  }
  if (response.transit &&
      (!want_transit_ || response.continues || response.next_stage <= response.current_stage)) {
    return failure(Error::kInvalid, "the target changed the stage unasked");
  }
  tsih_ = response.tsih;
  return {};
}

Task<Checked> LoginPhase::send_text(std::string text) {
  TextSplitter splitter(std::move(text));
  while (true) {
    std::string piece = splitter.take(kLoginSegmentBytes);
    const bool more = !splitter.empty();
    Checked sent = co_await send_request(std::move(piece), more);
    if (!sent.has_value() || !more) co_return sent;
    // The answer to a PDU that is continued is empty.
    const auto response = co_await receive_response();
    if (!response.has_value()) co_return std::unexpected(response.error());
    if (!segment_.empty() || response->transit) {
      co_return failure(Error::kInvalid, "the target answered half of a request");
    }
  }
}

Task<Checked> LoginPhase::receive_text(std::string& text) {
  TextAssembler assembler;
  for (unsigned count = 0; count < kMaximumExchanges; ++count) {
    const auto response = co_await receive_response();
    if (!response.has_value()) co_return std::unexpected(response.error());
    if (!assembler.append(segment_)) co_return failure(Error::kInvalid, "login text too long");
    moved_ = response->transit;
    if (moved_) {
      stage_ = static_cast<LoginStage>(response->next_stage);
    }
    if (!response->continues) {
      text = assembler.take();
      co_return Checked{};
    }
    Checked sent = co_await send_request({}, false);
    if (!sent.has_value()) co_return sent;
  }
  co_return failure(Error::kInvalid, "the target never finishes its login text");
}

void LoginPhase::enter_operational(std::vector<KeyValue>& pairs) {
  negotiator_.enter(NegotiationPhase::kOperational);
  negotiator_.offer_operational(pairs);
  want_transit_ = true;
}

Checked LoginPhase::begin(std::vector<KeyValue>& pairs) {
  const auto key = [&](const char* name) {
    const auto found = request_.keys.find(name);
    return found == request_.keys.end() ? std::optional<std::string>() : found->second;
  };
  const std::optional<std::string> method = key("AuthMethod");
  const bool skip_security = method.has_value() && method->empty() && !request_.chap.has_value();
  negotiator_.enter(skip_security ? NegotiationPhase::kOperational : NegotiationPhase::kSecurity);
  stage_ = skip_security ? LoginStage::kOperational : LoginStage::kSecurity;

  negotiator_.offer_text("InitiatorName", request_.initiator_name, pairs);
  if (!request_.initiator_alias.empty()) {
    negotiator_.offer_text("InitiatorAlias", request_.initiator_alias, pairs);
  }
  const bool discovery = request_.target_name.empty();
  if (request_.tsih == 0) {
    negotiator_.offer_text("SessionType", discovery ? "Discovery" : "Normal", pairs);
  }
  if (!discovery) negotiator_.offer_text("TargetName", request_.target_name, pairs);
  if (skip_security) {
    enter_operational(pairs);
    return {};
  }
  if (request_.chap.has_value()) {
    auto algorithms = chap_algorithms_from(request_.chap_digests);
    if (!algorithms.has_value()) return failure(Error::kInvalid, algorithms.error());
    ChapInitiator::Options options{
        .credential = {.user = request_.chap->user, .secret = request_.chap->secret},
        .algorithms = std::move(*algorithms)};
    if (request_.mutual_chap.has_value()) {
      options.mutual = ChapCredential{.user = request_.mutual_chap->user,
                                      .secret = request_.mutual_chap->secret};
    }
    chap_.emplace(std::move(options), initiator_challenges(), openssl_random());
  }
  const std::string offered = method.value_or(chap_.has_value() ? "CHAP" : "None");
  none_acceptable_ = !request_.mutual_chap.has_value() && offers_none(offered);
  negotiator_.offer_text("AuthMethod", offered, pairs);
  want_transit_ = !chap_.has_value();
  return {};
}

// The keys of one response in the security stage.
Checked LoginPhase::answer_security(const std::vector<KeyValue>& received,
                                    std::vector<KeyValue>& pairs) {
  if (!chap_.has_value()) {
    want_transit_ = true;
    return {};
  }
  // AuthMethod itself is handed over too: it is the target's choice, not yet a part of CHAP.
  const bool only_choice =
      std::ranges::all_of(received, [](const KeyValue& pair) { return pair.key == "AuthMethod"; });
  if (only_choice) {
    for (const KeyValue& pair : received) {
      if (pair.value == "CHAP") continue;
      return failure(Error::kPermission,
                     fmt::format("the target answers AuthMethod={}, not CHAP", pair.value));
    }
    chap_begun_ = true;
    const std::vector<KeyValue> start = chap_->start();
    pairs.insert(pairs.end(), start.begin(), start.end());
    return {};
  }
  auto next = chap_->receive(received);
  if (!next.has_value()) {
    return failure(Error::kPermission, fmt::format("CHAP: {}", describe(next.error())));
  }
  pairs.insert(pairs.end(), next->begin(), next->end());
  want_transit_ = chap_->ready_to_transit();
  return {};
}

// What one logical response asks of the next request.
Checked LoginPhase::answer(std::vector<KeyValue> received, std::vector<KeyValue>& pairs) {
  // A text is negotiated in the stage in which it was asked for.
  for (const KeyValue& pair : received) {
    if (pair.key != "AuthMethod" || pair.value != kNone) continue;
    // Who impersonates a target that has to prove itself would rather not be asked.
    if (!none_acceptable_ || chap_begun_) {
      return failure(Error::kPermission, "the target answers AuthMethod=None, not CHAP");
    }
    chap_.reset();
  }
  auto reply = negotiator_.receive(received);
  if (!reply.has_value()) return failure(Error::kInvalid, reply.error().to_string());
  pairs = std::move(reply->answers);
  if (negotiator_.phase() == NegotiationPhase::kSecurity) {
    const bool finished = chap_.has_value() && chap_->done();
    if (!finished) {
      const Checked answered = answer_security(reply->handed_over, pairs);
      if (!answered.has_value()) return answered;
    }
    if (moved_ && chap_.has_value() && !chap_->done()) {
      return failure(Error::kPermission, "the target left the security stage unproven");
    }
  }
  if (!moved_) {
    if (negotiator_.phase() == NegotiationPhase::kOperational) want_transit_ = true;
    return {};
  }
  if (!pairs.empty()) {
    return failure(Error::kInvalid, "the target left a stage with offers of its own open");
  }
  if (stage_ == LoginStage::kOperational) {
    enter_operational(pairs);
    return {};
  }
  const auto concluded = negotiator_.conclude();
  if (!concluded.has_value()) return failure(Error::kInvalid, concluded.error().to_string());
  return {};
}

Task<Checked> LoginPhase::run() {
  std::vector<KeyValue> pairs;
  Checked step = begin(pairs);
  if (!step.has_value()) co_return step;
  for (unsigned count = 0; count < kMaximumExchanges; ++count) {
    step = co_await send_text(format_text(pairs));
    if (!step.has_value()) co_return step;
    std::string text;
    step = co_await receive_text(text);
    if (!step.has_value()) co_return step;
    auto received = parse_text(text);
    if (!received.has_value()) {
      co_return failure(Error::kInvalid, fmt::format("login text: {}", describe(received.error())));
    }
    pairs.clear();
    step = answer(std::move(*received), pairs);
    if (!step.has_value()) co_return step;
    if (stage_ == LoginStage::kFullFeature) co_return Checked{};
  }
  co_return failure(Error::kInvalid, "the login does not come to an end");
}

// Connecting has no bound of its own: whoever is late finds nobody waiting and closes.
struct PendingConnect {
  Event done;
  bool abandoned = false;
  Result<std::unique_ptr<Stream>> stream = std::unexpected(Error::kTimedOut);
};

Task<void> connect_into(std::shared_ptr<PendingConnect> pending, Endpoint endpoint) {
  Result<std::unique_ptr<Stream>> stream = co_await Executor::current().connect(endpoint);
  if (pending->abandoned) co_return;
  pending->stream = std::move(stream);
  pending->done.set();
}

Task<Result<std::unique_ptr<Stream>>> connect_until(Endpoint endpoint, TimePoint deadline) {
  auto pending = std::make_shared<PendingConnect>();
  spawn(connect_into(pending, endpoint));
  const bool in_time = co_await pending->done.wait_until(deadline);
  if (!in_time) {
    pending->abandoned = true;
    co_return std::unexpected(Error::kTimedOut);
  }
  co_return std::move(pending->stream);
}

// Resets the stream when the login takes too long.
struct LoginTimer {
  LoginTimer(Stream& stream, TimePoint deadline) : executor(Executor::current()) {
    timer.deadline = deadline;
    timer.owner = this;
    timer.fire = [](Timer& due) {
      auto& self = *static_cast<LoginTimer*>(due.owner);
      self.fired = true;
      self.target->reset();
    };
    target = &stream;
    executor.arm(timer);
  }
  ~LoginTimer() { executor.disarm(timer); }
  LoginTimer(const LoginTimer&) = delete;
  LoginTimer& operator=(const LoginTimer&) = delete;

  Executor& executor;
  Stream* target;
  Timer timer;
  bool fired = false;
};

struct Attempt {
  std::expected<InitiatorLoginResult, LoginFailure> result;
  std::optional<std::string> redirected_to;
};

Task<Attempt> log_in_at(InitiatorLoginRequest& request, KeyPreferences preferences,
                        Endpoint endpoint, TimePoint deadline) {
  Result<std::unique_ptr<Stream>> stream = co_await connect_until(endpoint, deadline);
  if (!stream.has_value()) {
    co_return Attempt{.result = failure(stream.error(), fmt::format("{}: {}", endpoint.to_string(),
                                                                    describe(stream.error())))};
  }
  LoginPhase phase(request, std::move(preferences), **stream);
  bool late = false;
  Checked outcome;
  {
    LoginTimer timer(**stream, deadline);
    outcome = co_await phase.run();
    late = timer.fired;
  }
  if (!outcome.has_value()) {
    LoginFailure why = outcome.error();
    if (late) why = LoginFailure{.error = Error::kTimedOut, .message = "the login took too long"};
    why.message = fmt::format("{}: {}", endpoint.to_string(), why.message);
    (*stream)->shutdown();
    co_return Attempt{.result = std::unexpected(std::move(why)),
                      .redirected_to = phase.redirected_to()};
  }
  InitiatorLoginResult result{
      .stream = std::move(*stream),
      .endpoint = endpoint,
      .parameters = phase.parameters(),
      .tsih = phase.tsih(),
      .numbers = phase.numbers(),
      .rest = phase.take_rest(),
  };
  co_return Attempt{.result = std::move(result)};
}

}  // namespace

Task<std::expected<InitiatorLoginResult, LoginFailure>> initiator_login(
    InitiatorLoginRequest request) {
  std::map<std::string, std::string> keys = request.keys;
  keys.erase("AuthMethod");
  auto preferences = KeyPreferences::for_initiator().with(keys);
  if (!preferences.has_value()) co_return failure(Error::kInvalid, preferences.error());
  const TimePoint deadline = Executor::current().now() + request.timeout;
  Endpoint endpoint = request.endpoint;
  for (unsigned count = 0; count <= kMaximumRedirections; ++count) {
    Attempt attempt = co_await log_in_at(request, *preferences, endpoint, deadline);
    if (!attempt.redirected_to.has_value()) co_return std::move(attempt.result);
    const std::string address = attempt.redirected_to->substr(0, attempt.redirected_to->find(','));
    const Result<Endpoint> next = Endpoint::parse(address, kDefaultPort);
    if (!next.has_value()) {
      co_return failure(
          Error::kInvalid,
          fmt::format("redirected to \"{}\", which is not an IP address", printable(address)));
    }
    endpoint = *next;
  }
  co_return failure(Error::kInvalid, "redirected too often");
}

}  // namespace sandbay::iscsi
