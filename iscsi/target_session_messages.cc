// What a session sends of its own accord: pings, asynchronous messages, and the questions by which
// it learns that statuses have arrived. RFC 7143 sections 4.2.2.3, 4.2.3.3, 11.6.1, 11.9 and 11.19.
//
// A discovery session gets none of this (section 7.4.3). Every wait here has an end.

#include <algorithm>
#include <vector>

#include "iscsi/target_session.h"
#include "runtime/frame_pool.h"

namespace sandbay::iscsi {
namespace {

// A connection that has not acknowledged its statuses then loses its right to deliver them.
constexpr Duration kAcknowledgementTime = std::chrono::seconds(5);

struct CrossingPing final : Message, FramePooled {
  std::shared_ptr<Session> session;
  ConnectionLink* link = nullptr;
};

}  // namespace

// Pings --------------------------------------------------------------------------------------

void Session::request_ping(ConnectionLink& link) {
  if (Executor::current_or_null() == &home_) {
    send_ping(link);  // A message could outlive the link: both live here.
    return;
  }
  auto* const crossing = new CrossingPing;
  crossing->session = shared_from_this();
  crossing->link = &link;
  crossing->run = [](Message& message) {
    const std::unique_ptr<CrossingPing> arrived(static_cast<CrossingPing*>(&message));
    arrived->session->send_ping(*arrived->link);
  };
  home_.send(*crossing);
}

void Session::send_ping(ConnectionLink& link) {
  if (is_discovery()) return;  // Section 7.4.3.
  Bhs bhs;
  write_nop_in({.target_transfer_tag = next_transfer_tag(), .numbers = numbers(link)}, bhs);
  send(link, bhs, {}, StatSnUse::kShow);
}

// Acknowledgements ---------------------------------------------------------------------------

Task<std::uint32_t> Session::ask_stat_sn(Connection* connection) {
  co_return connection->next_stat_sn();
}

void Session::note_acknowledged(ConnectionLink& link, std::uint32_t exp_stat_sn) {
  if (std::exchange(link.heard, true) && !serial_less(link.exp_stat_sn, exp_stat_sn)) return;
  link.exp_stat_sn = exp_stat_sn;
  if (fence_waiters_ > 0) changed_.notify_all();
}

// The response fence of a function that ends many tasks (sections 4.2.3.3 d and 11.6.1): statuses
// that were sent before its answer, on other connections than its own, arrive before it. TCP sees
// to its own. A connection that does not answer is dropped: what it has not delivered by then, it
// never will.
Task<void> Session::wait_for_acknowledgements(const ConnectionLink* issuing) {
  struct Awaited {
    ConnectionLink* link = nullptr;
    std::uint32_t stat_sn = 0;  // The next one to be sent.
    bool over() const {
      return link->ended || (link->heard && !serial_less(link->exp_stat_sn, stat_sn));
    }
  };
  std::vector<Awaited> awaited;
  for (const auto& link : links_) {
    if (link.get() == issuing || !answers(*link)) continue;
    ++link->pins;
    awaited.push_back({.link = link.get()});
  }
  for (Awaited& each : awaited) {
    each.stat_sn = co_await invoke_on(*each.link->home, ask_stat_sn(each.link->connection));
    if (!each.over()) send_ping(*each.link);
  }
  const TimePoint deadline = home_.now() + kAcknowledgementTime;
  ++fence_waiters_;
  while (!std::ranges::all_of(awaited, &Awaited::over)) {
    const bool woken = co_await changed_.wait_until(deadline);
    if (!woken) break;
  }
  --fence_waiters_;
  for (const Awaited& each : awaited) {
    if (!each.over()) drop(*each.link);
    unpin(*each.link);
  }
}

// Asynchronous messages ----------------------------------------------------------------------

// Nothing is kept for a connection that has gone, and nobody has to wait, unless a rule says so in
// Parameter2.
void Session::send_event(ConnectionLink& link, AsyncEventCode event, std::uint16_t parameter1,
                         std::uint16_t parameter3, std::uint16_t parameter2) {
  assert(!is_discovery());
  Bhs bhs;
  write_async_message({.numbers = numbers(link),
                       .event = event,
                       .parameter1 = parameter1,
                       .parameter2 = parameter2,
                       .parameter3 = parameter3},
                      bhs);
  send(link, bhs, {}, StatSnUse::kConsume);
}

// Tells the initiator, on a connection that stays, that another goes.
void Session::tell_drop(std::uint16_t cid) {
  if (is_discovery()) return;
  for (const auto& link : links_) {
    if (link->cid == cid || !answers(*link)) continue;
    send_event(*link, AsyncEventCode::kConnectionDrop, cid, 0);
    return;
  }
}

// One connection, or all.
Session::Concerned Session::of_cid(std::optional<std::uint16_t> cid) {
  return [cid](const ConnectionLink& link) { return cid.value_or(link.cid) == link.cid; };
}

// Until they have ended; what arrives meanwhile is served, a logout above all.
Task<void> Session::wait_for_logouts(Concerned concerned, TimePoint deadline) {
  const auto there = [&] {
    return std::ranges::any_of(links_,
                               [&](const auto& link) { return !link->ended && concerned(*link); });
  };
  while (there()) {
    const bool woken = co_await changed_.wait_until(deadline);
    if (!woken) co_return;
  }
}

Task<bool> Session::ask_to_log_out(std::optional<std::uint16_t> cid, Duration time) {
  if (cid && find_link(*cid) == nullptr) co_return false;
  if (is_discovery()) co_return true;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time).count();
  for (const auto& link : links_) {
    if (!answers(*link) || (cid && link->cid != *cid)) continue;
    send_event(*link, AsyncEventCode::kLogoutRequest, 0, static_cast<std::uint16_t>(seconds));
  }
  co_await wait_for_logouts(of_cid(cid), home_.now() + time);
  co_return true;
}

Task<std::uint32_t> Session::ask_to_leave(std::uint32_t portal, Duration time) {
  if (is_discovery()) co_return 0;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time).count();
  const Concerned there = [portal](const ConnectionLink& link) {
    return link.portal == portal && link.asked;
  };
  std::uint32_t asked = 0;
  for (const auto& link : links_) {
    if (!answers(*link) || link->portal != portal) continue;
    link->asked = true;
    send_event(*link, AsyncEventCode::kLogoutRequest, 0, static_cast<std::uint16_t>(seconds));
    ++asked;
  }
  if (asked != 0) co_await wait_for_logouts(there, home_.now() + time);
  co_return asked;
}

Task<std::uint32_t> Session::drop_portal(std::uint32_t portal) {
  std::uint32_t dropped = 0;
  for (;;) {
    const auto left = std::ranges::find_if(links_, [portal](const auto& link) {
      return !link->ended && link->portal == portal && link->asked;
    });
    if (left == links_.end()) co_return dropped;
    const std::uint16_t cid = (*left)->cid;
    const bool there = co_await drop_connection(cid);
    if (there) ++dropped;
  }
}

Task<bool> Session::drop_connection(std::uint16_t cid) {
  ConnectionLink* const link = find_link(cid);
  if (link == nullptr) co_return false;
  if (!is_discovery() && answers(*link)) {
    const bool only = std::ranges::none_of(
        links_, [&](const auto& other) { return other.get() != link && answers(*other); });
    if (only) send_event(*link, AsyncEventCode::kConnectionDrop, cid, 0);
    if (!only) tell_drop(cid);
    ++link->pins;
    co_await wait_for_logouts(of_cid(cid), home_.now() + kAnnouncementTime);
    unpin(*link);
  }
  break_off(*link);
  co_return true;
}

Task<void> Session::request_negotiation(Duration within) {
  if (is_discovery()) co_return;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(within).count();
  for (const auto& link : links_) {
    if (!answers(*link)) continue;
    send_event(*link, AsyncEventCode::kNegotiationRequest, 0, static_cast<std::uint16_t>(seconds));
  }
}

// Rules --------------------------------------------------------------------------------------

void Session::announce(ConnectionLink& link, AsyncEventCode event, Duration time) {
  if (is_discovery() || announcing_ || !background_.enter()) return;
  announcing_ = true;
  spawn(carry_out_event(link.cid, event, time));
}

// A logout that is asked for and does not come in time, and what is announced, end connections. A
// negotiation that does not come changes nothing.
Task<void> Session::carry_out_event(std::uint16_t cid, AsyncEventCode event, Duration time) {
  const std::shared_ptr<Session> keep = shared_from_this();
  const GateHold hold(background_);
  const auto seconds =
      static_cast<std::uint16_t>(std::chrono::duration_cast<std::chrono::seconds>(time).count());
  const bool logout = event == AsyncEventCode::kLogoutRequest;
  // The present ones: others may come meanwhile, which nobody has announced anything to.
  std::vector<ConnectionLink*> concerned;
  for (const auto& link : links_) {
    const bool all = event != AsyncEventCode::kConnectionDrop;
    if (!answers(*link) || (!all && link->cid != cid)) continue;
    if (event == AsyncEventCode::kNegotiationRequest || logout) {
      send_event(*link, event, 0, seconds);
    } else if (link->cid == cid) {
      send_event(*link, event, all ? 0 : cid, 0, seconds);
    }
    if (event == AsyncEventCode::kNegotiationRequest) continue;
    ++link->pins;
    concerned.push_back(link.get());
  }
  const TimePoint deadline = home_.now() + (logout ? time : kAnnouncementTime);
  // A link that has ended is let go at once: another connection may take its number.
  const auto let_go = [this](ConnectionLink* link) {
    if (link->ended) unpin(*link);
    return link->ended;
  };
  while (true) {
    std::erase_if(concerned, let_go);
    if (concerned.empty()) break;
    const bool woken = co_await changed_.wait_until(deadline);
    if (!woken) break;
  }
  for (ConnectionLink* const link : concerned) break_off(*link);
  std::erase_if(concerned, let_go);
  announcing_ = false;
}

void Session::close_window(Duration time) {
  window_opens_ = std::max(window_opens_, home_.now() + time);
  if (window_closed_ || !background_.enter()) return;
  window_closed_ = true;
  spawn(open_window());
}

Task<void> Session::open_window() {
  const std::shared_ptr<Session> keep = shared_from_this();
  const GateHold hold(background_);
  while (!closing_ && home_.now() < window_opens_ && is_interfered_with()) {
    (void)co_await changed_.wait_until(std::min(window_opens_, home_.now() + kLookAtRules));
  }
  window_closed_ = false;
  refresh_window();
  tell_window();
}

}  // namespace sandbay::iscsi
