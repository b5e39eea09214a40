// fault-page TEMPLATE: sandbay-faults(7) in mdoc, with what the table of faults says in place of
// @FAULTS@. Fails if no entry of the page is about a word that every fault knows.
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "fault/rule_words.h"
#include "fault/traits.h"

namespace sandbay::fault {
namespace {

constexpr std::string_view kMark = "@FAULTS@\n";

std::string joined(const std::vector<std::string>& parts) {
  std::string line;
  for (const std::string& part : parts) line += (line.empty() ? "" : ", ") + part;
  return line;
}

// A word with a value, or alone with its `=`, is bold.
std::string marked(std::string_view text) {
  std::string page;
  while (!text.empty()) {
    const std::string_view token = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(token.size() + 1, text.size()));
    const std::size_t head = token.find_first_not_of('(');
    const std::size_t tail = token.find_last_not_of(",.;:)") + 1;
    const bool is_word = token.find('=') != std::string_view::npos;
    if (!page.empty() && !page.ends_with('\n')) page += " ";
    page += is_word ? fmt::format("{}\\fB{}\\fR{}", token.substr(0, head),
                                  token.substr(head, tail - head), token.substr(tail))
                    : std::string(token);
    // mdoc wants each sentence on a line of its own.
    if (token.ends_with('.') && !text.empty()) page += "\n";
  }
  return page;
}

std::string entry(const Traits& fault) {
  std::vector<std::string> places;
  for (std::size_t kind = 0; kind < kPlaceKinds; ++kind) {
    const Place place{.kind = static_cast<Place::Kind>(kind), .name = {}};
    if ((fault.places & bit(place.kind)) != 0) places.push_back(place_text(place));
  }
  std::vector<std::string> words;
  for (const Word& word : rule_words()) {
    if (word.faults != kEveryFault && word.knows(fault.fault)) words.emplace_back(word.name);
  }
  const std::string own = words.empty() ? "" : "; " + joined(words);
  return fmt::format(".It Ic {}\n{}\n.br\n{}{}.\n", fault.name, marked(fault.about), joined(places),
                     own);
}

bool explains_every_word(const std::string& page) {
  for (const Word& word : rule_words()) {
    if (word.faults != kEveryFault) continue;  // Its faults have it.
    bool found = word.name == "do";            // The faults themselves are about it.
    for (std::size_t at = page.find("\n.It Ic "); at != std::string::npos && !found;
         at = page.find("\n.It Ic ", at + 1)) {
      const std::string entry = page.substr(at + 1, page.find('\n', at + 1) - at - 1) + " ";
      found = entry.contains(fmt::format(" {} ", word.name));
    }
    if (found) continue;
    fmt::print(stderr, "fault-page: no entry of the page is about the word {}\n", word.name);
    return false;
  }
  return true;
}

int run(const char* file) {
  std::ifstream stream(file);
  std::string page{std::istreambuf_iterator<char>(stream), {}};
  const std::size_t mark = page.find(kMark);
  if (!stream || mark == std::string::npos) {
    fmt::print(stderr, "fault-page: {}: cannot be read, or has no line {}", file, kMark);
    return 1;
  }
  std::string faults;
  for (const Traits& fault : all_traits()) faults += entry(fault);
  page.replace(mark, kMark.size(), faults);
  if (!explains_every_word(page)) return 1;
  fmt::print("{}", page);
  return 0;
}

}  // namespace
}  // namespace sandbay::fault

int main(int count, char** arguments) { return count == 2 ? sandbay::fault::run(arguments[1]) : 2; }
