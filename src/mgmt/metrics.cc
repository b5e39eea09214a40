// Names begin with sandbay_; what only grows ends in _total; units are bytes and seconds.
#include "mgmt/metrics.h"

#include <fmt/core.h>

#include <chrono>
#include <string_view>

#include "mgmt/metrics_cache.h"
#include "mgmt/metrics_hardware.h"
#include "mgmt/metrics_pools.h"
#include "mgmt/metrics_text.h"
#include "runtime/log_queue.h"

namespace sandbay::mgmt {

namespace {

using scsi::CommandKind;

constexpr std::string_view kKindNames[scsi::kCommandKindCount] = {"read",  "write", "verify",
                                                                  "flush", "unmap", "other"};

std::string volume_label(const group::VolumeInfo& volume) {
  return fmt::format("volume=\"{}\"", escape(volume.name));
}

void add_group(Text& text, const group::GroupInfo& group) {
  text.family("sandbay_info", "gauge", "The group and its version; always 1.");
  text.sample(fmt::format("group=\"{}\",uuid=\"{}\",version=\"{}\"", escape(group.name), group.uuid,
                          group.version),
              1);
  text.family("sandbay_uptime_seconds", "gauge", "Time since the group was started.");
  text.sample("", std::chrono::duration<double>(group.uptime).count());
  text.family("sandbay_volumes", "gauge", "Volumes.");
  text.sample("", group.volumes);
  text.family("sandbay_targets", "gauge", "Targets.");
  text.sample("", group.targets);
  text.family("sandbay_sessions", "gauge", "Sessions.");
  text.sample("", group.sessions);
  text.family("sandbay_provisioned_bytes", "gauge", "Sum of the sizes of all volumes.");
  text.sample("", group.provisioned_bytes);
}

void add_volumes(Text& text, const std::vector<group::VolumeInfo>& volumes) {
  const auto by_kind = [&](auto add) {
    for (const auto& volume : volumes) {
      for (std::size_t i = 0; i < scsi::kCommandKindCount; ++i) {
        add(fmt::format("{},kind=\"{}\"", volume_label(volume), kKindNames[i]),
            volume.counters.by_kind[i]);
      }
    }
  };
  const auto by_volume = [&](auto value) {
    for (const auto& volume : volumes) text.sample(volume_label(volume), value(volume));
  };
  text.family("sandbay_volume_size_bytes", "gauge", "Size of the volume.");
  by_volume([](const auto& volume) { return volume.specification.size_bytes; });
  text.family("sandbay_volume_allocated_bytes", "gauge", "Pages of a volume on a pool.");
  by_volume([](const auto& volume) { return volume.allocated_bytes; });
  text.family("sandbay_volume_snapshot_bytes", "gauge",
              "Bytes that the snapshots of a volume on a pool use.");
  by_volume([](const auto& volume) { return volume.snapshot_bytes; });
  text.family("sandbay_volume_snapshot_reserve_bytes", "gauge",
              "What its snapshots may take; 0: what there is.");
  by_volume([](const auto& volume) { return volume.reserve_bytes; });
  text.family("sandbay_volume_reserve_deleted_total", "counter",
              "Snapshots deleted for want of reserve.");
  by_volume([](const auto& volume) { return volume.reserve_deleted; });
  text.family("sandbay_volume_reserve_taken_offline_total", "counter",
              "Snapshots taken offline for want of reserve.");
  by_volume([](const auto& volume) { return volume.reserve_taken_offline; });
  text.family("sandbay_volume_online", "gauge", "1 if the volume is online.");
  by_volume([](const auto& volume) { return volume.online ? 1 : 0; });
  text.family("sandbay_volume_healthy", "gauge", "1 if the volume's device is in good health.");
  by_volume([](const auto& volume) { return volume.health == "good" ? 1 : 0; });
  text.family("sandbay_volume_commands_total", "counter", "SCSI commands completed, by kind.");
  by_kind([&](const std::string& labels, const auto& kind) { text.sample(labels, kind.commands); });
  text.family("sandbay_volume_bytes_total", "counter", "Bytes moved, by kind of command.");
  by_kind([&](const std::string& labels, const auto& kind) { text.sample(labels, kind.bytes); });
  text.family("sandbay_volume_errors_total", "counter",
              "SCSI commands that ended with CHECK CONDITION, by kind.");
  by_kind([&](const std::string& labels, const auto& kind) { text.sample(labels, kind.errors); });
  text.family("sandbay_volume_latency_seconds", "histogram",
              "Time from a command's arrival to its completion, by kind.");
  by_kind([&](const std::string& labels, const auto& kind) { text.latency(labels, kind.latency); });
  text.family("sandbay_volume_commands_in_flight", "gauge", "Commands in the task set.");
  by_volume([](const auto& volume) { return volume.counters.in_flight; });
  text.family("sandbay_volume_commands_held", "gauge",
              "Commands aborted and answered whose device has not let go of them.");
  by_volume([](const auto& volume) { return volume.counters.held; });
  text.family("sandbay_volume_aborted_total", "counter", "Commands aborted.");
  by_volume([](const auto& volume) { return volume.counters.aborted; });
  text.family("sandbay_volume_resets_total", "counter", "Logical unit resets.");
  by_volume([](const auto& volume) { return volume.counters.resets; });
  text.family("sandbay_volume_busy_total", "counter", "Commands answered BUSY.");
  by_volume([](const auto& volume) { return volume.counters.busy; });
  text.family("sandbay_volume_task_set_full_total", "counter", "Commands answered TASK SET FULL.");
  by_volume([](const auto& volume) { return volume.counters.task_set_full; });
  text.family("sandbay_volume_reservation_conflicts_total", "counter",
              "Commands answered RESERVATION CONFLICT.");
  by_volume([](const auto& volume) { return volume.counters.reservation_conflicts; });
  text.family("sandbay_volume_registrations", "gauge",
              "Nexuses that are registered for persistent reservations.");
  by_volume([](const auto& volume) { return volume.counters.registrations; });
  text.family("sandbay_volume_reserved", "gauge", "1 while a host has reserved the volume.");
  by_volume([](const auto& volume) { return volume.counters.reserved ? 1 : 0; });
}

std::string session_label(const iscsi::SessionInfo& session) {
  return fmt::format("tsih=\"{}\",initiator=\"{}\",target=\"{}\"", session.tsih,
                     escape(session.initiator_name), escape(session.target_name));
}

void add_sessions(Text& text, const std::vector<iscsi::SessionInfo>& sessions) {
  text.family("sandbay_session_commands_total", "counter", "Commands received by the session.");
  for (const auto& session : sessions) text.sample(session_label(session), session.commands);
  text.family("sandbay_session_commands_in_flight", "gauge", "Commands not yet answered.");
  for (const auto& session : sessions) {
    text.sample(session_label(session), session.commands_in_flight);
  }
  text.family("sandbay_session_connections", "gauge", "Connections of the session.");
  for (const auto& session : sessions) {
    text.sample(session_label(session), session.connections.size());
  }
  const auto by_connection = [&](auto value) {
    for (const auto& session : sessions) {
      for (const auto& connection : session.connections) {
        text.sample(fmt::format("tsih=\"{}\",cid=\"{}\",peer=\"{}\"", session.tsih, connection.cid,
                                escape(connection.initiator_address)),
                    value(connection));
      }
    }
  };
  text.family("sandbay_connection_in_bytes_total", "counter", "Bytes received on the connection.");
  by_connection([](const auto& connection) { return connection.bytes_in; });
  text.family("sandbay_connection_out_bytes_total", "counter", "Bytes sent on the connection.");
  by_connection([](const auto& connection) { return connection.bytes_out; });
}

void add_portals(Text& text, const std::vector<group::PortalInfo>& portals) {
  const auto label = [](const group::PortalInfo& portal) {
    return fmt::format("portal=\"{}\",member=\"{}\"", escape(portal.listen), escape(portal.member));
  };
  text.family("sandbay_portal_connections", "gauge",
              "Connections that came to the portal, of sessions other than for discovery.");
  for (const auto& portal : portals) text.sample(label(portal), portal.connections);
  text.family("sandbay_portal_takes_logins", "gauge",
              "1 if logins are served at the portal, 0 if they are sent to another.");
  for (const auto& portal : portals) text.sample(label(portal), portal.takes_logins ? 1 : 0);
}

void add_server(Text& text, const iscsi::ServerCounters& server) {
  const auto counter = [&](std::string_view name, std::string_view help, std::uint64_t value) {
    text.family(fmt::format("sandbay_iscsi_{}_total", name), "counter", help);
    text.sample("", value);
  };
  counter("connections_accepted", "TCP connections accepted.", server.connections_accepted);
  counter("logins_succeeded", "Logins that succeeded.", server.logins_succeeded);
  counter("logins_failed", "Logins that failed.", server.logins_failed);
  counter("logins_redirected", "Logins that were sent to another address.",
          server.logins_redirected);
  counter("pdus_in", "PDUs received.", server.pdus_in);
  counter("pdus_out", "PDUs sent.", server.pdus_out);
  counter("commands", "SCSI commands received.", server.commands);
  counter("in_bytes", "Bytes received.", server.bytes_in);
  counter("out_bytes", "Bytes sent.", server.bytes_out);
  counter("rejects", "Reject PDUs sent.", server.rejects);
  counter("header_digest_errors", "PDUs with a wrong header digest.", server.header_digest_errors);
  counter("data_digest_errors", "PDUs with a wrong data digest.", server.data_digest_errors);
  counter("task_management", "Task management requests.", server.task_management);
  counter("sessions_reinstated", "Sessions that were reinstated.", server.sessions_reinstated);
}

void add_executors(Text& text, const std::vector<group::ExecutorInfo>& executors) {
  const auto gauge = [&](std::string_view name, std::string_view help, auto value) {
    text.family(name, "gauge", help);
    for (const auto& executor : executors) {
      text.sample(fmt::format("reactor=\"{}\"", executor.index), value(executor));
    }
  };
  gauge("sandbay_buffer_limit_bytes", "Limit of the reactor's buffer pool.",
        [](const auto& executor) { return executor.buffer_limit_bytes; });
  gauge("sandbay_buffer_used_bytes", "Buffers handed out.",
        [](const auto& executor) { return executor.buffer_used_bytes; });
  gauge("sandbay_buffer_reserved_bytes", "Buffers promised to solicited transfers.",
        [](const auto& executor) { return executor.buffer_reserved_bytes; });
  gauge("sandbay_buffer_waiters", "Operations that wait for buffers.",
        [](const auto& executor) { return executor.buffer_waiters; });
  const auto seconds = [](Duration time) { return std::chrono::duration<double>(time).count(); };
  gauge("sandbay_reactor_longest_turn_seconds",
        "Longest time for which the reactor was held, since the start.",
        [&](const auto& executor) { return seconds(executor.turns.longest); });
  gauge("sandbay_reactor_longest_turn_work_seconds",
        "Most processor time that a turn longer than 10 ms took.",
        [&](const auto& executor) { return seconds(executor.turns.longest_work); });
  const auto counter = [&](std::string_view name, std::string_view help, auto value) {
    text.family(name, "counter", help);
    for (const auto& executor : executors) {
      text.sample(fmt::format("reactor=\"{}\"", executor.index), value(executor));
    }
  };
  counter("sandbay_reactor_long_turns_total", "Turns that were longer than 10 ms.",
          [](const auto& executor) { return executor.turns.long_turns; });
  counter("sandbay_reactor_long_work_turns_total",
          "Turns that took more than 10 ms of processor time.",
          [](const auto& executor) { return executor.turns.long_work_turns; });
  text.family("sandbay_log_lines_dropped_total", "counter",
              "Log lines that were dropped because the log was not read fast enough.");
  text.sample("", LogQueue::dropped());
}

void add_management(Text& text, std::uint64_t audited, const TurnedAway& turned_away) {
  text.family("sandbay_management_changes_total", "counter",
              "Requests for changes, done or refused, since the group was made.");
  text.sample("", audited);
  text.family("sandbay_management_refused_total", "counter",
              "Requests that were turned away, by what their token was.");
  text.sample("reason=\"unauthenticated\"", turned_away.unknown.load());
  text.sample("reason=\"forbidden\"", turned_away.forbidden.load());
}

}  // namespace

std::string metrics_text(const group::Measurements& measurements, const TurnedAway& turned_away) {
  Text text;
  add_group(text, measurements.group);
  add_volumes(text, measurements.volumes);
  add_sessions(text, measurements.sessions);
  add_portals(text, measurements.group.portals);
  add_server(text, measurements.server);
  add_executors(text, measurements.executors);
  add_cache(text, measurements.cache);
  add_pools(text, measurements.pools);
  add_hardware(text, measurements);
  add_management(text, measurements.audited, turned_away);
  return text.take();
}

}  // namespace sandbay::mgmt
