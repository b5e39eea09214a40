// Which bytes of another's text reach a terminal.
#include "runtime/printable.h"

#include <catch2/catch.hpp>

namespace sandbay {
namespace {

TEST_CASE("Printable text holds no control character", "[X9][printable]") {
  CHECK(printable("a\x1b]0;x\x07z\r\n\x7f") == "a\\x1b]0;x\\x07z\\x0d\\x0a\\x7f");
  CHECK(printable("\xc2\x80\xc2\x9b\xc2\x9f") == "\\x80\\x9b\\x9f");
  CHECK(printable("\x9b[2J") == "\\x9b[2J");
  CHECK(printable("one\ntwo\r\n", '\n') == "one\ntwo\\x0d\n");
}

TEST_CASE("Printable text keeps every other character", "[X9][printable]") {
  const std::string text = "volume \"Größe\" \xc2\xa0 \xe2\x82\xac \xf0\x9f\x92\xbe \\";
  CHECK(printable(text) == text);
}

TEST_CASE("Printable text is valid UTF-8", "[X9][printable]") {
  CHECK(printable("\xc2") == "\\xc2");
  CHECK(printable("\xc0\x9b") == "\\xc0\\x9b");
  CHECK(printable("\xe0\x82\x9b") == "\\xe0\\x82\\x9b");
  CHECK(printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");
  CHECK(printable("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");
  CHECK(printable("\xe2\x82xyz") == "\\xe2\\x82xyz");
  CHECK(printable("\xff") == "\\xff");
}

}  // namespace
}  // namespace sandbay
