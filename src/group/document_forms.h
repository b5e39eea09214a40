// Two short forms of configuration files, put in their full form before sections are read:
//
// - A value may say where it comes from: { value = "5us", from = "assumed", source = "…" }.
// - A section [[name]] with `count = N` is N sections. In its texts, and in those of the sections
//   inside it, {START+STEP} is START, START + STEP, and so on; {32+1:02x} is the same with two
//   hexadecimal digits; a text that is nothing else is a whole number. A name without such a place
//   is followed by 0, 1, and so on. Drives are counted by their own reader, which knows their
//   files.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "group/document.h"

namespace sandbay::group {

inline constexpr std::array<std::string_view, 4> kOrigins = {"data sheet", "document", "fitted",
                                                             "assumed"};

struct Provenance {
  std::string name;    // "controller.write_mib", "drive[1].change.outer_rate"
  std::string value;   // The file's own text.
  std::string origin;  // One of kOrigins.
  std::string source;  // In words.
  std::uint32_t line = 0;
};

// Puts values in the places of the tables that say where they come from. `taken`, which may be
// empty, sees each one, and may change it. `path` is how the root is called, as in TableReader.
void unwrap_values(Value& root, Mistakes& mistakes,
                   const std::function<void(const Provenance&, Value&)>& taken = {},
                   const std::string& path = {});

// Puts sections in the places of those with a count.
void expand_counts(Value& root, Mistakes& mistakes);

}  // namespace sandbay::group
