// Shell completion, made from the tree of nouns, verbs and options, so that it cannot disagree with
// it.
#pragma once

#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 calls it so.
class App;
}

namespace sandbay::cli {

// A script for bash: source <(sandbay completion bash).
std::string bash_completion(const CLI::App& app);

}  // namespace sandbay::cli
