// known(): the value of an optional that is there by an invariant of its owner; asserted. Where it
// may be missing, ask instead.
#pragma once

#include <cassert>
#include <optional>

namespace sandbay {

template <class T>
const T& known(const std::optional<T>& value) {
  assert(value.has_value());
  return *value;
}

template <class T>
T& known(std::optional<T>& value) {
  assert(value.has_value());
  return *value;
}

}  // namespace sandbay
