// Words by the number of edits between them.
#include "runtime/nearest.h"

#include <algorithm>
#include <cstddef>

namespace sandbay {

namespace {

// Edits that turn one word into the other, a swap of neighbours counting once.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::string_view nearest(std::string_view given, const std::vector<std::string>& known) {
  constexpr std::size_t kLongestCompared = 64;
  if (given.size() > kLongestCompared) return {};
  std::string_view best;
  std::size_t best_distance = given.size() / 3 + 2;
  for (const std::string_view word : known) {
    const std::size_t distance = edit_distance(given, word);
    if (distance < best_distance && distance < word.size()) {
      best = word;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace sandbay
