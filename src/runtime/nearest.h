// nearest(): the word that somebody may have meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sandbay {

// The word of `known` that `given` is most likely a misspelling of; empty if none is near. A view
// into `known`.
std::string_view nearest(std::string_view given, const std::vector<std::string>& known);

}  // namespace sandbay
