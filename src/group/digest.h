// Digest: SHA-256 of bytes that come piece by piece.
#pragma once

#include <fmt/core.h>
#include <openssl/evp.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>

namespace sandbay::group {

class Digest {
 public:
  Digest() : context_(::EVP_MD_CTX_new(), &::EVP_MD_CTX_free) {
    ::EVP_DigestInit_ex(context_.get(), ::EVP_sha256(), nullptr);
  }
  void add(std::string_view bytes) {
    ::EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size());
  }
  // With its length before it, so that the end of one and the beginning of the next are told apart.
  void add_counted(std::string_view bytes) {
    add(fmt::format("{}:", bytes.size()));
    add(bytes);
  }
  // In hexadecimal; once.
  std::string text() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> value{};
    unsigned size = 0;
    ::EVP_DigestFinal_ex(context_.get(), value.data(), &size);
    std::string hex;
    for (unsigned i = 0; i < size; ++i) hex += fmt::format("{:02x}", value[i]);
    return hex;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&::EVP_MD_CTX_free)> context_;
};

}  // namespace sandbay::group
