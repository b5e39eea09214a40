// The grammar of RFC 7143 section 6.1.
#include "iscsi/text.h"

#include <rapidcheck.h>

#include <catch2/catch.hpp>

#include "base64.h"
#include "runtime/utf8.h"

namespace sandbay::iscsi {

using namespace std::string_literals;

TEST_CASE("Pairs end in a null byte and split at the first equals sign", "[iscsi][text]") {
  const auto pairs = parse_text("A=1\0Bc=x=y\0C=\0"s);
  REQUIRE(pairs.has_value());
  CHECK(*pairs == std::vector<KeyValue>{{"A", "1"}, {"Bc", "x=y"}, {"C", ""}});
  CHECK(parse_text("").value().empty());
  // Runs of null bytes, as some initiators pad with.
  CHECK(parse_text("A=1\0\0\0B=2\0\0"s).value().size() == 2);
}

TEST_CASE("Bad text is refused", "[iscsi][text]") {
  CHECK(parse_text("A=1").error() == TextError::kNoDelimiter);
  CHECK(parse_text("A=1\0B"s).error() == TextError::kNoDelimiter);
  CHECK(parse_text("A\0"s).error() == TextError::kNoEqualsSign);
  CHECK(parse_text("=1\0"s).error() == TextError::kBadKey);
  CHECK(parse_text("a=1\0"s).error() == TextError::kBadKey);
  CHECK(parse_text("A b=1\0"s).error() == TextError::kBadKey);
  CHECK(parse_text(std::string(64, 'A') + "=1\0"s).error() == TextError::kBadKey);
  CHECK(parse_text(std::string(63, 'A') + "=1\0"s).has_value());
  CHECK(parse_text("A=" + std::string(kMaximumValueBytes + 1, 'x') + "\0"s).error() ==
        TextError::kValueTooLong);
  CHECK(parse_text(std::string(kMaximumTextBytes + 1, '\0')).error() == TextError::kTooLong);
  std::string many;
  for (std::size_t count = 0; count <= kMaximumPairs; ++count) append_pair(many, "A", "1");
  CHECK(parse_text(many).error() == TextError::kTooLong);
}

TEST_CASE("Key names are standard-labels", "[iscsi][text]") {
  CHECK(is_key_name("HeaderDigest"));
  CHECK(is_key_name("X-com.example.bar.foo.do_something"));
  CHECK(is_key_name("X#NodeArchitecture"));
  CHECK(is_key_name("A@b+c"));
  CHECK_FALSE(is_key_name(""));
  CHECK_FALSE(is_key_name("1A"));
  CHECK_FALSE(is_key_name("A/B"));
}

TEST_CASE("Numbers are decimal or hexadecimal constants", "[iscsi][text]") {
  CHECK(parse_number("0") == 0);
  CHECK(parse_number("262144") == 262144);
  CHECK(parse_number("0x10") == 16);
  CHECK(parse_number("0XfF") == 255);
  CHECK(parse_number("18446744073709551615") == 18446744073709551615ULL);
  for (const char* bad : {"", "-1", "+1", " 1", "1 ", "01", "0x", "1x", "0xg", "1.5", "1e3",
                          "18446744073709551616", "0x10000000000000000", "Yes"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_number(bad).has_value());
  }
}

TEST_CASE("Booleans are Yes and No and nothing else", "[iscsi][text]") {
  CHECK(parse_boolean("Yes") == true);
  CHECK(parse_boolean("No") == false);
  CHECK_FALSE(parse_boolean("yes").has_value());
  CHECK_FALSE(parse_boolean("").has_value());
}

TEST_CASE("Lists split at commas", "[iscsi][text]") {
  CHECK(split_list("CRC32C,None") == std::vector<std::string_view>{"CRC32C", "None"});
  CHECK(split_list("") == std::vector<std::string_view>{""});
  CHECK(split_list("a,,b").size() == 3);
}

TEST_CASE("Binary values are hexadecimal or base64", "[iscsi][text]") {
  const std::vector<std::byte> abc{std::byte{'a'}, std::byte{'b'}, std::byte{'c'}};
  CHECK(parse_binary("0x616263", 3) == abc);
  CHECK(parse_binary("0X616263", 3) == abc);
  CHECK(parse_binary("0bYWJj", 3) == abc);
  CHECK(parse_binary("0BYWJj", 3) == abc);
  // Section 6.1: n digits make (n + 1) / 2 bytes.
  CHECK(parse_binary("0x123", 2) == std::vector<std::byte>{std::byte{0x01}, std::byte{0x23}});
  CHECK_FALSE(parse_binary("0x616263", 2).has_value());
  CHECK_FALSE(parse_binary("0bYWJj", 2).has_value());
  for (const char* bad :
       {"", "0x", "0b", "616263", "0xfg", "0bY", "0bYWJ*", "0bYW=j", "0b=", "0bYWJj=", "0b===="}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_binary(bad, 100).has_value());
  }
}

TEST_CASE("Base64 gives the vectors of RFC 4648 section 10", "[iscsi][text]") {
  const std::pair<const char*, const char*> vectors[] = {
      {"f", "0bZg=="},        {"fo", "0bZm8="},        {"foo", "0bZm9v"},
      {"foob", "0bZm9vYg=="}, {"fooba", "0bZm9vYmE="}, {"foobar", "0bZm9vYmFy"}};
  for (const auto& [plain, encoded] : vectors) {
    const auto bytes = std::as_bytes(std::span(std::string_view(plain)));
    CHECK(format_base64(bytes) == encoded);
    CHECK(parse_binary(encoded, 6) == std::vector(bytes.begin(), bytes.end()));
  }
}

TEST_CASE("Binary values come back in both encodings", "[iscsi][text]") {
  REQUIRE(rc::check([](const std::vector<std::uint8_t>& data) {
    RC_PRE(!data.empty());
    const auto bytes = std::as_bytes(std::span(data));
    const std::vector<std::byte> expected(bytes.begin(), bytes.end());
    RC_ASSERT(parse_binary(format_hexadecimal(bytes), data.size()) == expected);
    RC_ASSERT(parse_binary(format_base64(bytes), data.size()) == expected);
  }));
}

TEST_CASE("UTF-8 is checked as in RFC 3629", "[iscsi][text]") {
  CHECK(is_utf8("Bob's Disk"));
  CHECK(is_utf8("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"));
  for (const char* bad : {"\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff",
                          "\xc3", "\xe2\x82", "\x80"}) {
    CHECK_FALSE(is_utf8(bad));
  }
}

TEST_CASE("Text is put together over PDUs up to a limit", "[iscsi][text]") {
  TextAssembler assembler(8);
  const auto segment = std::as_bytes(std::span(std::string_view("A=12")));
  CHECK(assembler.append(segment));
  CHECK(assembler.append(segment));
  CHECK_FALSE(assembler.append(segment.first(1)));
  CHECK(assembler.empty());
  CHECK(assembler.append(segment));
  CHECK(assembler.take() == "A=12");
  CHECK(assembler.empty());
}

TEST_CASE("What the splitter cuts the assembler joins", "[iscsi][text]") {
  REQUIRE(rc::check([](const std::string& text) {
    const auto size = *rc::gen::inRange<std::size_t>(1, 10);
    TextSplitter splitter(text);
    TextAssembler assembler;
    while (!splitter.empty()) {
      const std::string piece = splitter.take(size);
      RC_ASSERT(!piece.empty() && piece.size() <= size);
      RC_ASSERT(assembler.append(std::as_bytes(std::span(piece))));
    }
    RC_ASSERT(assembler.take() == text);
  }));
}

TEST_CASE("Whatever is formatted is parsed again", "[iscsi][text]") {
  REQUIRE(rc::check([](const std::vector<std::string>& values) {
    std::vector<KeyValue> pairs;
    for (const std::string& value : values) {
      std::string clean = value;
      std::erase(clean, '\0');
      pairs.push_back({.key = "Key" + std::to_string(pairs.size()), .value = clean});
    }
    RC_ASSERT(parse_text(format_text(pairs)).value() == pairs);
  }));
}

}  // namespace sandbay::iscsi
