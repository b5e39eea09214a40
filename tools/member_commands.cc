// sandbay member list|show|add|remove
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "tools/commands.h"
#include "tools/progress.h"
#include "tools/table.h"

namespace sandbay::cli {

namespace {

using nlohmann::json;

struct MemberArguments {
  std::string name;
  std::string pool;
  bool wait = false;
};

std::string or_dash(const json& value) {
  std::string text = text_of(value);
  return text.empty() ? "-" : text;
}

void list_members(const Settings& settings) {
  const json answer = expect(Client(settings.management).get(kMembers));
  if (settings.json) return print_json(answer);
  using enum Table::Align;
  Table table({{"NAME"},
               {"PLACE"},
               {"POOL"},
               {"SETS", kRight},
               {"SIZE", kRight},
               {"FREE", kRight},
               {"HEALTH"},
               {"STATE"}});
  for (const json& member : answer.at("members")) {
    table.add({text_of(member.at("name")), text_of(member.at("place")), or_dash(member.at("pool")),
               fmt::format("{}", member.at("sets").size()), human_size(member.at("size")),
               human_size(member.at("free")), text_of(member.at("health")),
               text_of(member.at("state"))});
  }
  fmt::print("{}", table.text());
}

std::string progress_of(const json& leaving) {
  const json& seconds = leaving.at("seconds_left");
  return fmt::format(
      "{} moved, {} left{}", human_size(leaving.at("moved")), human_size(leaving.at("left")),
      seconds.is_null() ? "" : fmt::format(", about {:.0f} s", seconds.get<double>()));
}

void print(const json& member) {
  const std::string state = text_of(member.at("state"));
  const std::string reason = text_of(member.at("reason"));
  const json& busy = member.at("modelled_busy");
  say("{}", facts({{"name", text_of(member.at("name"))},
                   {"place", text_of(member.at("place"))},
                   {"pool", or_dash(member.at("pool"))},
                   {"state",
                    state == "leaving" ? state + ": " + progress_of(member.at("leaving")) : state},
                   {"health", reason.empty() ? text_of(member.at("health"))
                                             : text_of(member.at("health")) + ": " + reason},
                   {"drives", member.at("drives").dump()},
                   {"size", fmt::format("{}, {} free", human_size(member.at("size")),
                                        human_size(member.at("free")))},
                   {"modelled", busy.is_null() ? "-"
                                               : fmt::format("{:.3f} s of its processors",
                                                             busy.get<double>())}}));
  using enum Table::Align;
  Table table({{"SET"}, {"LEVEL"}, {"SIZE", kRight}, {"FREE", kRight}, {"STATE"}});
  for (const json& set : member.at("sets")) {
    const std::string why = text_of(set.at("reason"));
    table.add({text_of(set.at("set")), text_of(set.at("level")), human_size(set.at("size")),
               human_size(set.at("free")), why.empty() ? text_of(set.at("state")) : why});
  }
  if (!table.empty()) say("\n{}", table.text());
  Table portals({{"PORTAL"}, {"TAG", kRight}, {"CONNECTIONS", kRight}, {"LOGINS"}});
  for (const json& portal : member.at("portals")) {
    const std::string advertised = text_of(portal.at("advertised"));
    portals.add({advertised.empty()
                     ? text_of(portal.at("listen"))
                     : fmt::format("{} (as {})", text_of(portal.at("listen")), advertised),
                 portal.at("group_tag").dump(), portal.at("connections").dump(),
                 portal.at("takes_logins").get<bool>() ? "taken" : "sent to other portals"});
  }
  if (!portals.empty()) say("\n{}", portals.text());
}

void show_member(const Settings& settings, const MemberArguments& arguments) {
  const json member = expect(Client(settings.management).get(member_path(arguments.name)));
  if (settings.json) return print_json(member);
  print(member);
}

void add(const Settings& settings, const MemberArguments& arguments) {
  json body = json::object();
  if (!arguments.pool.empty()) body["pool"] = arguments.pool;
  const json member =
      expect(Client(settings.management).post(member_path(arguments.name) + "/pool", body));
  if (settings.json) return print_json(member);
  say("member {}: of pool {}, which has {} of it; volumes spread to it in the background\n",
      arguments.name, text_of(member.at("pool")), human_size(member.at("size")));
}

// Until the member has left its pool; shows how far it is.
json wait_until_left(const Settings& settings, const MemberArguments& arguments) {
  const Client client(settings.management);
  Progress progress;
  for (;;) {
    json member = expect(client.get(member_path(arguments.name)));
    if (text_of(member.at("pool")).empty()) return member;
    const json& leaving = member.at("leaving");
    const double moved = leaving.is_null() ? 0 : leaving.at("moved").get<double>();
    const double all = leaving.is_null() ? 0 : moved + leaving.at("left").get<double>();
    progress.update(fmt::format("member {}: leaving", arguments.name), all == 0 ? 0 : moved / all);
    std::this_thread::sleep_for(kLookEvery);
  }
}

void remove_member(const Settings& settings, const MemberArguments& arguments) {
  json member = expect(Client(settings.management).remove(member_path(arguments.name) + "/pool"));
  if (arguments.wait) member = wait_until_left(settings, arguments);
  if (settings.json) return print_json(member);
  if (text_of(member.at("pool")).empty()) {
    say("member {}: in no pool\n", arguments.name);
    return;
  }
  say("member {}: leaves pool {}: {}; see sandbay member show {}\n", arguments.name,
      text_of(member.at("pool")), progress_of(member.at("leaving")), arguments.name);
}

}  // namespace

void add_member_commands(CLI::App& app, Settings& settings) {
  const auto a = std::make_shared<MemberArguments>();
  CLI::App* noun = app.add_subcommand("member",
                                      "Arrays that pools are made of: list, show, add, "
                                      "remove");
  noun->require_subcommand(1);
  noun->add_subcommand("list", "List all members")->callback([&settings] {
    list_members(settings);
  });

  CLI::App* verb = noun->add_subcommand("show", "Show one member and its sets");
  verb->add_option("NAME", a->name)->required();
  verb->callback([&settings, a] { show_member(settings, *a); });

  verb = noun->add_subcommand("add", "Give a member's free sets to a pool");
  verb->add_option("NAME", a->name)->required();
  verb->add_option("--pool", a->pool, "The pool, if there are several")->type_name("POOL");
  verb->callback([&settings, a] { add(settings, *a); });

  verb = noun->add_subcommand("remove", "Empty a member's sets, and take them from their pool");
  verb->add_option("NAME", a->name)->required();
  verb->add_flag("--wait", a->wait, "Show the progress, and end when the member has left");
  verb->callback([&settings, a] { remove_member(settings, *a); });
}

}  // namespace sandbay::cli
