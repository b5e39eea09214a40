// Base64 as a peer writes it in text (RFC 7143 section 6.1), by OpenSSL: we only read it.
#pragma once

#include <openssl/evp.h>

#include <cstddef>
#include <span>
#include <string>

namespace sandbay::iscsi {

inline std::string format_base64(std::span<const std::byte> bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  const int length = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                     reinterpret_cast<const unsigned char*>(bytes.data()),
                                     static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(length));
  return "0b" + text;
}

}  // namespace sandbay::iscsi
