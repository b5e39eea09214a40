// Wildcards: whether a name fits a pattern in which * stands for any text and ? for one character.
// Without recursion: after a star only the last star can need another try.
#pragma once

#include <cstddef>
#include <string_view>

namespace sandbay {

// `same` compares a character of the pattern with one of the name.
template <class Same>
bool fits_wildcards(std::string_view pattern, std::string_view name, Same same) {
  std::size_t at = 0;
  std::size_t here = 0;
  std::size_t star = std::string_view::npos;  // The last one, and the part of the name behind it.
  std::size_t behind = 0;
  while (here < name.size()) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = at++;
      behind = here;
    } else if (at < pattern.size() && (pattern[at] == '?' || same(pattern[at], name[here]))) {
      ++at;
      ++here;
    } else if (star != std::string_view::npos) {
      at = star + 1;
      here = ++behind;
    } else {
      return false;
    }
  }
  return pattern.substr(at).find_first_not_of('*') == std::string_view::npos;
}

}  // namespace sandbay
