// Whether text is well-formed UTF-8 (RFC 3629).
#pragma once

#include <string_view>

namespace sandbay {

bool is_utf8(std::string_view text);

}  // namespace sandbay
