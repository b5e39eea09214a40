// RemoteTarget: a target elsewhere that is always to be logged in to: it keeps one session of
// several connections (RFC 7143 section 2.4.1), makes it again when it is lost, learns which
// logical units there are, looks at them at an interval, and tells when any of that changes.
//
// A session that is lost is recovered for `patience` with its commands waiting; then they end, and
// logging in anew is tried for ever, less and less often. Every session has the same initiator name
// and ISID, so that each login ends what the one before has left at the target (section 6.3.5).
//
// Home: the executor where it was made. Units stay until it goes, also when they are away.
#pragma once

#include <chrono>
#include <expected>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "iscsi/initiator.h"
#include "iscsi/remote_unit.h"
#include "runtime/sync.h"

namespace sandbay::iscsi {

// What the target wants to know of who logs in; see lead_claim.h.
class RemoteClaim {
 public:
  virtual ~RemoteClaim() = default;
  // The value of kLeadKey in the next login; it may have to be stored first. The error is half a
  // sentence.
  virtual Task<std::expected<std::string, std::string>> propose() = 0;
  // The target has taken it. The value with which the same session may be recovered.
  virtual std::string accepted() = 0;
  // What the target has taken is not enough to use it: there is more to propose first.
  virtual bool unfinished() const { return false; }
};

struct RemoteTargetOptions {
  std::string name;              // For messages.
  InitiatorOptions session;      // Where, who, and how many connections. Its times are set here.
  RemoteClaim* claim = nullptr;  // Outlives the target; null: none is made.
  Duration patience = std::chrono::seconds(5);
  Duration look_interval = std::chrono::seconds(1);
};

// A session, and who is using it.
class RemoteLink {
 public:
  explicit RemoteLink(std::unique_ptr<InitiatorSession> made) : session(std::move(made)) {}
  std::unique_ptr<InitiatorSession> session;
  Gate users;
};

class RemoteTarget {
 public:
  explicit RemoteTarget(RemoteTargetOptions options);
  ~RemoteTarget();  // After stop().
  RemoteTarget(const RemoteTarget&) = delete;
  RemoteTarget& operator=(const RemoteTarget&) = delete;

  // Before start(): rules concern its connections. They outlive it.
  void set_interferences(Interferences* interferences) {
    options_.session.interferences = interferences;
  }
  // Begins to log in, in the background.
  void start();
  // Ends the session; requests that are still there end with kNotReady.
  Task<void> stop();
  // Called inline whenever a unit or the session has come or gone; it only takes notice.
  void on_change(std::function<void()> callback) { on_change_ = std::move(callback); }
  // Something for a log; at most one line an attempt.
  void on_event(std::function<void(bool warning, std::string text)> callback) {
    on_event_ = std::move(callback);
  }

  Executor& home() const noexcept { return home_; }
  const std::string& name() const noexcept { return options_.name; }
  Endpoint endpoint() const noexcept { return options_.session.endpoint; }
  Duration patience() const noexcept { return options_.patience; }
  bool up() const noexcept { return link_ != nullptr && link_->session->up(); }
  std::size_t connections_up() const noexcept {
    return link_ == nullptr ? 0 : link_->session->connections_up();
  }
  // Why it is away; empty if it is there.
  const std::string& reason() const noexcept { return reason_; }
  std::uint64_t logins() const noexcept { return logins_; }
  const std::vector<std::unique_ptr<RemoteUnit>>& units() const noexcept { return units_; }

  // Claims anew on the session that is there: a new token, say. kNotReady: there is none, or the
  // target cannot keep it now. kPermission: the target does not take this lead's word any more.
  Task<Error> renew_claim();

  // For RemoteUnit. ------------------------------------------------------------------------------
  const std::shared_ptr<RemoteLink>& link() const noexcept { return link_; }
  // A number for the target's run: another one when it has been started anew.
  std::uint64_t run();
  // A unit had something to say before it did what it was asked to: it is asked who it is now.
  void notice_attention() {
    relearn_ = true;
    wake_.notify_all();
  }
  void tell(bool warning, std::string text);

 private:
  Task<void> work();
  Task<void> connect();
  InitiatorOptions session_options() const;
  Task<std::string> settle_claim(std::shared_ptr<RemoteLink> link);
  Task<Error> renew_on(std::shared_ptr<RemoteLink> link);
  Task<void> look();
  Task<std::string> look_at_units(std::shared_ptr<RemoteLink> link);
  Task<void> drop(std::string reason);
  Task<std::string> learn_units(std::shared_ptr<RemoteLink> link);
  RemoteUnit* find(const RemoteUnitFacts& facts) const;
  void changed();

  Executor& home_;
  RemoteTargetOptions options_;
  std::function<void()> on_change_;
  std::function<void(bool warning, std::string text)> on_event_;
  std::shared_ptr<RemoteLink> link_;
  std::vector<std::unique_ptr<RemoteUnit>> units_;
  std::string reason_ = "it has not been reached yet";
  std::string told_;
  std::string run_text_;
  std::uint64_t run_ = 0;
  std::uint64_t logins_ = 0;
  Duration pause_{};
  bool stopping_ = false;
  bool relearn_ = false;
  Mutex claiming_;
  Condition wake_;
  Gate gate_;
};

}  // namespace sandbay::iscsi
