// The short forms of configuration files, and what is wrong with them.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include "group/configuration.h"
#include "group/document_forms.h"

namespace sandbay::group {
namespace {

// The file as flat text: "a=1 b[1].c=x ".
void print(const Value& value, const std::string& path, std::string& out) {
  for (const Value::Member& member : value.members) {
    print(member.value, path.empty() ? member.key : path + "." + member.key, out);
  }
  for (std::size_t i = 0; i < value.elements.size(); ++i) {
    print(value.elements[i], fmt::format("{}[{}]", path, i + 1), out);
  }
  if (value.kind == Value::Kind::kString) out += fmt::format("{}={} ", path, value.text);
  if (value.kind == Value::Kind::kInteger) out += fmt::format("{}=#{} ", path, value.integer);
}

struct Forms {
  std::string text;
  std::string wrong;
  std::vector<Provenance> values;
};

Forms full_form(std::string_view toml) {
  auto root = read_toml(toml, "x.toml");
  REQUIRE(root.has_value());
  Forms forms;
  Mistakes mistakes("x.toml");
  unwrap_values(*root, mistakes,
                [&](const Provenance& each, Value&) { forms.values.push_back(each); });
  expand_counts(*root, mistakes);
  print(*root, "", forms.text);
  for (const std::string& line : mistakes.sorted()) forms.wrong += line + "\n";
  return forms;
}

TEST_CASE("A value may say where it comes from", "[configuration][document]") {
  const Forms forms = full_form(
      "[cache]\nmemory = { value = \"1GiB\", from = \"document\", source = \"paper\" }\n"
      "[[drive]]\nname = \"d\"\n[drive.change]\n"
      "zones = { value = 3, from = \"assumed\", source = \"usual\" }\n");
  CHECK(forms.wrong.empty());
  CHECK(forms.text == "cache.memory=1GiB drive[1].name=d drive[1].change.zones=#3 ");
  REQUIRE(forms.values.size() == 2);
  CHECK(forms.values[0].name == "cache.memory");
  CHECK(forms.values[0].origin == "document");
  CHECK(forms.values[0].source == "paper");
  CHECK(forms.values[0].line == 2);
  CHECK(forms.values[1].name == "drive[1].change.zones");
  CHECK(forms.values[1].value == "3");
}

TEST_CASE("What is wrong with where a value comes from is one line", "[configuration][document]") {
  const auto [toml, line] = GENERATE(table<std::string, std::string>({
      {"a = { from = \"document\", source = \"paper\" }\n",
       "x.toml:1: a: has no value; write { value = "},
      {"a = { value = 1, source = \"paper\" }\n", "x.toml:1: a: has no from; "},
      {"a = { value = 1, from = \"fitted\" }\n", "x.toml:1: a: has no source; "},
      {"a = { value = 1, from = \"rumour\", source = \"s\" }\n",
       "x.toml:1: a.from: is \"rumour\"; accepted are data sheet, document, fitted, assumed"},
      {"a = { value = 1, from = \"fitted\", sauce = \"s\", source = \"s\" }\n",
       "x.toml:1: a.sauce: "},
      {"a = { value = 1, from = 7, source = \"s\" }\n", "x.toml:1: a.from: is a whole number; "},
      {"a = { value = 1, from = \"fitted\", source = 7 }\n",
       "x.toml:1: a.source: is a whole number; "},
  }));
  const Forms forms = full_form(toml);
  CAPTURE(toml, forms.wrong);
  CHECK(forms.wrong.starts_with(line));
  CHECK(std::ranges::count(forms.wrong, '\n') == 1);
}

TEST_CASE("A section with a count stands for that number of sections",
          "[configuration][document]") {
  CHECK(full_form("[[raid]]\ncount = 3\nname = \"s\"\ndrives = [\"d{0+4}..d{3+4}\"]\n").text ==
        "raid[1].name=s0 raid[1].drives[1]=d0..d3 raid[2].name=s1 raid[2].drives[1]=d4..d7 "
        "raid[3].name=s2 raid[3].drives[1]=d8..d11 ");
  CHECK(full_form("[[volume]]\ncount = 2\nname = \"v{1+1}\"\nnaa = \"60{30+3:02x}\"\n"
                  "lun = \"{0+1}\"\nnote = \"{} {1} {+1} {1+} {1+1:x} {7+1:03}\"\n")
            .text ==
        "volume[1].name=v1 volume[1].naa=601e volume[1].lun=#0 "
        "volume[1].note={} {1} {+1} {1+} {1+1:x} 007 "
        "volume[2].name=v2 volume[2].naa=6021 volume[2].lun=#1 "
        "volume[2].note={} {1} {+1} {1+} {1+1:x} 008 ");
  // Sections inside are numbered with the one around them; those of drives stay as they are.
  CHECK(full_form("[[member]]\ncount = 2\nname = \"a{2+1}\"\n[[member.portal]]\n"
                  "listen = \"h:{10+2}\"\n[[member.drive]]\nname = \"a{2+1}-d\"\ncount = 9\n")
            .text ==
        "member[1].name=a2 member[1].portal[1].listen=h:10 "
        "member[1].drive[1].name=a2-d member[1].drive[1].count=#9 "
        "member[2].name=a3 member[2].portal[1].listen=h:12 "
        "member[2].drive[1].name=a3-d member[2].drive[1].count=#9 ");
  CHECK(full_form("[[portal]]\ncount = 1\nlisten = \"h:{7+1}\"\n").text == "portal[1].listen=h:7 ");
}

TEST_CASE("A configuration may use both forms", "[configuration][document]") {
  const auto result = parse_configuration(
      "[group]\nname = \"g\"\nstate = \"s\"\n"
      "[[portal]]\ncount = 2\nlisten = \"127.0.0.1:{3260+1}\"\n"
      "rate = { value = \"1Gbit/s\", from = \"document\", source = \"paper\" }\n"
      "[[drive]]\nname = \"d\"\ncount = 4\nfile = \"{}.img\"\nsize = \"1GiB\"\n"
      "[[raid]]\ncount = 2\nname = \"set{1+1}\"\nlevel = \"raid1\"\n"
      "drives = [\"d{0+2}..d{1+2}\"]\n"
      "[[volume]]\ncount = 2\nname = \"v\"\nraid = \"set{1+1}\"\nsize = \"64MiB\"\n",
      "x.toml");
  if (!result) FAIL(result.error().front());
  REQUIRE(result->portals.size() == 2);
  CHECK(result->portals[1].listen.port() == 3261);
  CHECK(result->portals[1].port->rate == 125'000'000);
  REQUIRE(result->hardware.sets.size() == 2);
  CHECK(result->hardware.sets[1].name == "set2");
  CHECK(result->hardware.sets[1].drives == std::vector<std::string>{"d2", "d3"});
  REQUIRE(result->volumes.size() == 2);
  CHECK(result->volumes[1].specification.raid == "set2");
  // Sections of a count have their mistakes in one line, and share a message.
  const auto twice = parse_configuration(
      "[group]\nname = \"g\"\nstate = \"s\"\n[[portal]]\nlisten = \"127.0.0.1:3260\"\n"
      "[[volume]]\ncount = 300\nname = \"{7+1}\"\nmemory = true\nsize = \"0B\"\n",
      "x.toml");
  REQUIRE_FALSE(twice.has_value());
  REQUIRE(twice.error().size() == 1);
  CHECK(twice.error().front().starts_with("x.toml:10: volume[1].size: "));
  const auto wrong = parse_configuration(
      "[group]\nname = \"g\"\nstate = \"s\"\n[controller]\nread_request = { value = \"11s\", "
      "from = \"fitted\", source = \"s\" }\n",
      "x.toml");
  REQUIRE_FALSE(wrong.has_value());
  CHECK(wrong.error().front().starts_with("x.toml:5: controller.read_request: "));
  const auto without = parse_configuration(
      "[group]\nname = \"g\"\nstate = \"s\"\n[controller]\nread_request = { from = \"fitted\", "
      "source = \"s\" }\n",
      "x.toml");
  REQUIRE_FALSE(without.has_value());
  REQUIRE(without.error().size() == 1);
  CHECK(without.error().front().starts_with("x.toml:5: controller.read_request: has no value"));
}

TEST_CASE("A wrong count is one line, and no count is too large", "[configuration][document]") {
  for (const std::string count : {"0", "4097", "-1", "\"3\""}) {
    const Forms forms = full_form("[[raid]]\ncount = " + count + "\n");
    CAPTURE(count, forms.wrong);
    CHECK(forms.wrong.starts_with("x.toml:2: raid[1].count: "));
    CHECK(std::ranges::count(forms.wrong, '\n') == 1);
  }
  std::string numbers = "1";
  for (int i = 0; i < 300; ++i) numbers += ", 1";
  const Forms large = full_form("[[raid]]\ncount = 4000\nlist = [" + numbers + "]\n");
  CHECK(large.wrong.find("or 1000000 values, of this file") != std::string::npos);
  // A text may be much, too.
  const Forms text =
      full_form("[[raid]]\ncount = 4000\nname = \"" + std::string(100'000, 'x') + "\"\n");
  CHECK(text.wrong.find("or 1000000 values, of this file") != std::string::npos);
  const Forms nested =
      full_form("[[member]]\ncount = 64\n[[member.raid]]\ncount = 64\nname = \"s\"\n");
  CHECK(nested.wrong.starts_with("x.toml:4: member[1].raid[1].count: "));
  CHECK(nested.text.size() < 4096 * 64);
}

}  // namespace
}  // namespace sandbay::group
