// Goal: two groups' daemons, one of them a member of the other: its sets are stores there, go and
// come with it, and nobody makes volumes on them. Method: both on one reactor, over loopback.
#include <algorithm>
#include <catch2/catch.hpp>

#include "group/service.h"
#include "runtime/known.h"
#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/running.h"

namespace sandbay::group {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

const std::string kSets =
    "[[drive]]\nname = \"d0\"\nfile = \"d0\"\nsize = \"72MiB\"\n"
    "[[raid]]\nname = \"a\"\nlevel = \"jbod\"\ndrives = [\"d0\"]\njournal = \"1MiB\"\n";

std::string head(const std::string& name, const std::string& rest) {
  return "[group]\nname = \"" + name + "\"\nstate = \"s\"\n" + rest +
         "[[portal]]\nlisten = \"127.0.0.1:0\"\n";
}

void check_mistake(const std::string& text, const std::string& expected) {
  const auto result = parse_configuration(text, "x.toml");
  REQUIRE_FALSE(result.has_value());
  CAPTURE(result.error().front());
  CHECK_THAT(result.error().front(), Catch::Contains(expected));
}

// A daemon: a group, and the store below it.
struct Side {
  std::unique_ptr<metadata::Store> store;
  std::unique_ptr<Group> group;
};

Task<std::string> start(Side* side, Configuration configuration) {
  const auto state = StateDirectory::open(configuration.state);
  if (!state) co_return state.error().text;
  auto store = co_await metadata::open_rocksdb_store(Executor::current(),
                                                     {.path = state->metadata().string()});
  if (!store) co_return store.error();
  side->store = std::move(*store);
  auto group = co_await Group::start(std::move(configuration), *side->store);
  if (!group) {
    co_await side->store->close();
    co_return group.error().text;
  }
  side->group = std::move(*group);
  co_return std::string();
}

Task<void> stop(Side* side) {
  if (side->group == nullptr) co_return;
  co_await side->group->shutdown();
  side->group.reset();
  co_await side->store->close();
  side->store.reset();
}

std::string member_text(const std::string& state, const std::string& portal) {
  return "[group]\nname = \"array2\"\nrole = \"member\"\nstate = \"" + state +
         "\"\n[lead]\naddress = \"127.0.0.1\"\n[[portal]]\nlisten = \"" + portal + "\"\n" + kSets;
}

std::string lead_text(const std::string& state, const std::string& remote,
                      const std::string& name = "array2") {
  return "[group]\nname = \"lead\"\nstate = \"" + state +
         "\"\n[[portal]]\nlisten = \"127.0.0.1:0\"\n[[member]]\nname = \"" + name +
         "\"\ntarget = \"iqn.2026-11.org.sandbay:array2\"\nremote = \"" + remote +
         "\"\npatience = \"1s\"\n" +
         "[[pool]]\nname = \"p\"\npage = \"1MiB\"\nmembers = [\"array1\", \"" + name + "\"]\n";
}

// The pool's one store, once it is as it is expected to be.
Task<std::string> store_reason(Group* lead, bool wanted_there) {
  std::string reason = "no store";
  for (int i = 0; i < 400; ++i) {
    const auto pool = co_await lead->show_pool("p");
    const bool known = pool.has_value() && pool->stores.size() == 1;
    if (known) reason = pool->stores[0].reason;
    if (known && reason.empty() == wanted_there) co_return reason;
    co_await Executor::current().sleep_for(std::chrono::milliseconds(50));
  }
  co_return "still: " + reason;
}

Task<void> lead_and_member(std::filesystem::path base) {
  Side member;
  auto text = parse_configuration(member_text(base / "member", "127.0.0.1:0"), "member.toml");
  std::string error = co_await start(&member, *text);
  CHECK(error == "");
  if (!error.empty()) co_return;
  const std::string portal = member.group->portals().front().listen;
  CreateVolumeRequest request{.open = {.backing = true}};
  request.specification.name = "v";
  request.specification.size_bytes = 8 * kMiB;
  const auto refused = co_await member.group->create_volume(request);
  CHECK_FALSE(refused.has_value());
  if (!refused.has_value()) CHECK_THAT(refused.error().message, Catch::Contains("lead"));

  Side lead;
  const auto lead_configuration =
      parse_configuration(lead_text(base / "lead", portal), "lead.toml");
  CHECK(lead_configuration.has_value());
  if (!lead_configuration.has_value()) FAIL_CHECK(lead_configuration.error().front());
  error = co_await start(&lead, *lead_configuration);
  CHECK(error == "");
  std::string reason = co_await store_reason(lead.group.get(), true);
  CHECK(reason == "");
  const auto pool = co_await lead.group->show_pool("p");
  if (pool.has_value() && pool->stores.size() == 1) {
    CHECK(pool->stores[0].set == "array2/a");
    CHECK(pool->stores[0].member == "array2");
    CHECK(pool->stores[0].level == "jbod");
  }
  request.open = {.backing = true, .thin = false, .block_bytes = true};
  const auto made = co_await lead.group->create_volume(request);
  CHECK(made.has_value());
  if (!made.has_value()) FAIL_CHECK(made.error().message);

  // An import would forget whose its sets are.
  const auto imported = co_await member.group->import_part({.text = "x"});
  CHECK_FALSE(imported.has_value());
  if (!imported) CHECK_THAT(imported.error().message, Catch::Contains("leads this member"));

  // The member goes and comes back.
  co_await stop(&member);
  reason = co_await store_reason(lead.group.get(), false);
  CHECK_FALSE(reason.empty());
  CHECK(reason.find("still") == std::string::npos);
  text = parse_configuration(member_text(base / "member", portal), "member.toml");
  error = co_await start(&member, *text);
  CHECK(error == "");
  reason = co_await store_reason(lead.group.get(), true);
  CHECK(reason == "");

  // The lead starts while the member is away: what it had is known all the same.
  co_await stop(&lead);
  co_await stop(&member);
  error = co_await start(&lead, *lead_configuration);
  CHECK(error == "");
  const auto away = co_await lead.group->show_pool("p");
  CHECK((away.has_value() && away->stores.size() == 1));
  if (away.has_value() && away->stores.size() == 1) {
    CHECK(away->stores[0].set == "array2/a");
    CHECK_FALSE(away->stores[0].reason.empty());
  }
  co_await stop(&lead);
}

// The lead's file calls its member otherwise, while that serves and while it is offline.
Task<void> rename_member(std::filesystem::path base) {
  Side member;
  auto text = parse_configuration(member_text(base / "member", "127.0.0.1:0"), "member.toml");
  std::string error = co_await start(&member, *text);
  REQUIRE(error == "");
  const std::string portal = member.group->portals().front().listen;
  for (const std::string name : {"array2", "distant", "remote"}) {
    CAPTURE(name);
    if (name == "remote") co_await stop(&member);
    Side lead;
    const auto configuration =
        parse_configuration(lead_text(base / "lead", portal, name), "lead.toml");
    REQUIRE(configuration.has_value());
    error = co_await start(&lead, *configuration);
    REQUIRE(error == "");
    if (name == "remote") {
      // Its sets are known by the new name.
      const auto pool = co_await lead.group->show_pool("p");
      REQUIRE(pool.has_value());
      REQUIRE(pool->stores.size() == 1);
      CHECK(pool->stores[0].set == "remote/a");
      error = co_await start(
          &member, *parse_configuration(member_text(base / "member", portal), "member.toml"));
      CHECK(error == "");
    }
    const std::string reason = co_await store_reason(lead.group.get(), true);
    CHECK(reason == "");
    co_await stop(&lead);
  }
  co_await stop(&member);
}

// What the group with this text answers to a start.
Task<std::string> try_start(std::string text, bool forget) {
  auto configuration = parse_configuration(text, "x.toml");
  if (!configuration.has_value()) co_return configuration.error().front();
  if (forget) known(configuration->lead).forget = true;
  Side side;
  std::string error = co_await start(&side, std::move(*configuration));
  co_await stop(&side);
  co_return error;
}

// An array with volumes of its own is no member, and one that has a lead is no lead.
Task<void> roles_change(std::filesystem::path base) {
  const std::string own = "[group]\nname = \"array2\"\nstate = \"" + (base / "array").string() +
                          "\"\n[[portal]]\nlisten = \"127.0.0.1:0\"\n" + kSets;
  const std::string as_member = member_text(base / "array", "127.0.0.1:0");
  {
    Side array;
    std::string error = co_await start(&array, *parse_configuration(own, "x.toml"));
    CHECK(error == "");
    CreateVolumeRequest request;
    request.specification.name = "v";
    request.specification.size_bytes = 8 * kMiB;
    request.specification.backing = Backing::kRaid;
    request.specification.raid = "a";
    const auto made = co_await array.group->create_volume(request);
    CHECK(made.has_value());
    co_await stop(&array);
    error = co_await try_start(as_member, false);
    CHECK_THAT(error, Catch::Contains("volume \"v\""));
    error = co_await start(&array, *parse_configuration(own, "x.toml"));
    CHECK(error == "");
    const auto deleted = co_await array.group->delete_volume("v", false);
    CHECK(deleted.has_value());
    co_await stop(&array);
  }
  Side member;
  std::string error = co_await start(&member, *parse_configuration(as_member, "x.toml"));
  CHECK(error == "");
  if (!error.empty()) co_return;
  Side lead;
  const std::string text = lead_text(base / "lead", member.group->portals().front().listen);
  error = co_await start(&lead, *parse_configuration(text, "lead.toml"));
  CHECK(error == "");
  const std::string reason = co_await store_reason(lead.group.get(), true);
  CHECK(reason == "");
  co_await stop(&lead);
  co_await stop(&member);
  error = co_await try_start(member_text(base / "lead", "127.0.0.1:0"), false);
  CHECK_THAT(error, Catch::Contains("pool \"p\""));
  error = co_await try_start(own, false);
  CHECK_THAT(error, Catch::Contains("--forget-lead"));
  error = co_await try_start(as_member, true);
  CHECK(error == "");
  error = co_await try_start(own, false);
  CHECK(error == "");
}

}  // namespace

TEST_CASE("What a file says of remote members and leads is read", "[configuration][remote]") {
  const auto lead = parse_configuration(
      head("g", "") +
          "[[member]]\nname = \"array2\"\nremote = \"10.0.0.2\"\nconnections = 4\n"
          "chap_user = \"lead\"\nchap_secret = \"abcdefghijklmnop\"\n",
      "x.toml");
  INFO((lead ? std::string() : lead.error().front()));
  REQUIRE(lead.has_value());
  REQUIRE(lead->remotes.size() == 1);
  CHECK(lead->remotes[0].endpoint.to_string() == "10.0.0.2:3260");
  CHECK(lead->remotes[0].target == "iqn.2026-11.org.sandbay:array2");
  CHECK(lead->remotes[0].connections == 4);
  CHECK(known(lead->remotes[0].chap).user == "lead");
  CHECK_FALSE(lead->lead.has_value());

  const auto member = parse_configuration(head("array2", "role = \"member\"\n") + kSets, "x.toml");
  REQUIRE(member.has_value());
  REQUIRE(member->lead.has_value());
  CHECK(known(member->lead).target == "iqn.2026-11.org.sandbay:array2");
  CHECK(known(member->lead).access.size() == 1);
}

TEST_CASE("Mistakes about remote members and leads are told", "[configuration][remote]") {
  const std::string remote = "[[member]]\nname = \"m\"\nremote = ";
  check_mistake(head("g", "") + remote + "\"nowhere\"\n", "not the address of a member");
  check_mistake(head("g", "") + remote + "\"10.0.0.2\"\nconnections = 99\n", "connections");
  check_mistake(head("g", "") + remote + "\"10.0.0.2\"\n[[member.drive]]\nname = \"d\"\n", "drive");
  check_mistake(head("g", "") + remote + "\"10.0.0.2\"\n" + remote + "\"10.0.0.3\"\n", "another");
  const std::string target = "target = \"iqn.2026-11.org.sandbay:x\"\n";
  check_mistake(head("g", "") + remote + "\"10.0.0.2\"\n" + target +
                    "[[member]]\nname = \"n\"\nremote = \"10.0.0.2:3260\"\n" + target,
                "10.0.0.2:3260 with target iqn.2026-11.org.sandbay:x is member \"m\" already");
  check_mistake(head("g", "role = \"boss\"\n"), "unknown role");
  std::string many = head("g", "");
  for (int i = 0; i < 40; ++i) {
    many += "[[member]]\nname = \"m" + std::to_string(i) + "\"\nremote = \"10.0.0.2\"\n";
  }
  check_mistake(many, "members are too many");
  check_mistake(head("g", "") + "[lead]\n", "is of a member's file");
  check_mistake(head("g", "role = \"member\"\n") + "[[volume]]\nname = \"v\"\nsize = \"4MiB\"\n",
                "the lead's affair");
  check_mistake(head("g", "role = \"member\"\n") +
                    "[lead]\nmutual_chap_user = \"u\"\n"
                    "mutual_chap_secret = \"abcdefghijklmnop\"\n",
                "without CHAP");
}

TEST_CASE("A member on the network demands that its lead proves itself", "[G-L3][configuration]") {
  const auto text = [](const std::string& listen, const std::string& lead) {
    return "[group]\nname = \"m\"\nrole = \"member\"\nstate = \"s\"\n[[portal]]\nlisten = \"" +
           listen + "\"\n" + kSets + lead;
  };
  const std::string chap = "chap_user = \"u\"\nchap_secret = \"abcdefghijklmnop\"\n";
  for (const std::string& listen : {"0.0.0.0:3260", "10.0.0.2:3260", "[::]:3260"}) {
    CAPTURE(listen);
    check_mistake(text(listen, ""), "nothing proves that it is your group's lead");
    check_mistake(text(listen, "[lead]\n"), "write chap_user");
    check_mistake(text(listen, "[lead]\naddress = \"10.0.0.1\"\ninitiator = \"iqn.2026-11.x:l\"\n"),
                  "allow_first = true");
    check_mistake(text(listen, "[lead]\nallow_first = false\n"), "write chap_user");
    CHECK(parse_configuration(text(listen, "[lead]\n" + chap), "x.toml").has_value());
    CHECK(parse_configuration(text(listen, "[lead]\nallow_first = true\n"), "x.toml").has_value());
  }
  for (const std::string& listen : {"127.0.0.1:3260", "[::1]:3260"}) {
    CAPTURE(listen);
    auto member = parse_configuration(text(listen, ""), "x.toml");
    REQUIRE(member.has_value());
    CHECK_FALSE(check_first_lead(*member).has_value());
    member->portals.front().listen = Endpoint::ipv4(0, 3260);  // As --portal has it.
    CHECK(check_first_lead(*member).has_value());
  }
}

TEST_CASE("Nobody shows a lead what volumes of its own stand on", "[remote]") {
  const sandbay::testing::ScratchDirectory scratch;
  auto reactors = ReactorGroup::create({.count = 1, .memory_limit_bytes = std::size_t{128} << 20});
  REQUIRE(reactors.has_value());
  const std::filesystem::path base = scratch.file("");
  (*reactors)->run([&] { return roles_change(base); });
}

TEST_CASE("A remote member's sets are stores, and go and come with it", "[remote]") {
  const sandbay::testing::ScratchDirectory scratch;
  auto reactors = ReactorGroup::create({.count = 1, .memory_limit_bytes = std::size_t{128} << 20});
  REQUIRE(reactors.has_value());
  const std::filesystem::path base = scratch.file("");
  (*reactors)->run([&] { return lead_and_member(base); });
}

TEST_CASE("A remote member that is renamed serves its pool as before", "[remote][G-C5]") {
  const sandbay::testing::ScratchDirectory scratch;
  auto reactors = ReactorGroup::create({.count = 1, .memory_limit_bytes = std::size_t{128} << 20});
  REQUIRE(reactors.has_value());
  const std::filesystem::path base = scratch.file("");
  (*reactors)->run([&] { return rename_member(base); });
}

}  // namespace sandbay::group
